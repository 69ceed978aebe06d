#!/bin/sh
# Runs before the files of the package go: dpkg passes "remove" or "upgrade", rpm the number of
# versions that stay. An upgrade lets the server run, and restarts it afterwards.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
[ -d /run/systemd/system ] || exit 0
systemctl --no-reload disable --now lapse.service || true
