#!/bin/sh
# Runs after the files of the package are in place: dpkg passes "configure" and the version
# before, rpm the number of installed versions.
set -e

if ! getent passwd lapse >/dev/null 2>&1; then
	if command -v systemd-sysusers >/dev/null 2>&1; then
		systemd-sysusers lapse.conf
	else
		getent group lapse >/dev/null 2>&1 || groupadd --system lapse
		useradd --system --gid lapse --home-dir /var/lib/lapse --no-create-home --shell /usr/sbin/nologin lapse
	fi
fi
install -d -o lapse -g lapse -m 0700 /var/lib/lapse

# The machine has another service manager, or is an image that is being made.
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
case "$1" in
configure) before="$2" ;;
1) before="" ;;
*) before="$1" ;;
esac
if [ -z "$before" ]; then
	# Debian enables it, Fedora does not: that is its preset.
	systemctl preset lapse.service
	if systemctl is-enabled --quiet lapse.service; then
		systemctl start lapse.service || true
	fi
else
	systemctl try-restart lapse.service || true
fi
