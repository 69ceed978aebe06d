// Package deploy compares what deploy/ and scripts/systemd describe with what a server has and
// does. Alerts and the dashboard ask for metrics that it has. The systemd unit knows its exit codes
// and what it tells a service manager. The package has tests only.
package deploy
