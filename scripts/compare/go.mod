module github.com/lapsehq/lapse/scripts/compare

go 1.26.0

replace github.com/lapsehq/lapse => ../..
