#!/bin/sh
# Writes Docker's network options for this node's subnet, from subnet.env.

subnet_env=/run/flannel/subnet.env
docker_env=/run/docker_opts.env
key=DOCKER_OPTS
individual=
combined=
with_ipmasq=yes

usage() {
	cat >&2 <<USAGE
Usage: $0 [-f FILE] [-d FILE] [-i] [-c] [-m] [-k KEY]

Writes Docker's options for this node's subnet, one variable each and one for all.

  -f FILE  read this; default $subnet_env
  -d FILE  write this; default $docker_env
  -i       write the individual variables only (DOCKER_OPT_BIP, DOCKER_OPT_IPMASQ, DOCKER_OPT_MTU)
  -c       write the combined variable only
  -m       leave out --ip-masq
  -k KEY   name of the combined variable; default $key
USAGE
	exit 1
}

fail() {
	printf '%s: %s\n' "$0" "$1" >&2
	exit 1
}

while getopts 'f:d:icmk:h' option; do
	case $option in
	f) subnet_env=$OPTARG ;;
	d) docker_env=$OPTARG ;;
	i) individual=yes ;;
	c) combined=yes ;;
	m) with_ipmasq= ;;
	k) key=$OPTARG ;;
	*) usage ;;
	esac
done
if [ -z "$individual$combined" ]; then
	individual=yes
	combined=yes
fi
case $key in
'' | [0-9]* | *[!A-Za-z0-9_]*) fail "-k $key: this is no name of a shell variable" ;;
esac

# The shell would search PATH for a name without a slash.
case $subnet_env in
*/*) ;;
*) subnet_env=./$subnet_env ;;
esac
if [ -f "$subnet_env" ]; then
	# shellcheck source=/dev/null
	. "$subnet_env"
fi

if [ -n "$FLANNEL_SUBNET" ]; then
	DOCKER_OPT_BIP=--bip=$FLANNEL_SUBNET
fi
if [ -n "$FLANNEL_MTU" ]; then
	DOCKER_OPT_MTU=--mtu=$FLANNEL_MTU
fi
if [ -n "$with_ipmasq" ]; then
	# Only one of flannel and Docker may masquerade.
	case $FLANNEL_IPMASQ in
	'') ;;
	true) DOCKER_OPT_IPMASQ=--ip-masq=false ;;
	false) DOCKER_OPT_IPMASQ=--ip-masq=true ;;
	*) fail "$subnet_env: FLANNEL_IPMASQ is '$FLANNEL_IPMASQ', it must be true or false" ;;
	esac
fi

# The script never writes to a link or a pipe, except below /dev (for /dev/stdout).
case $docker_env in
/dev/*) ;;
*)
	[ ! -L "$docker_env" ] || fail "$docker_env is a symbolic link: delete it"
	[ ! -e "$docker_env" ] || [ -f "$docker_env" ] || fail "$docker_env is not a regular file: delete it"
	;;
esac
: >"$docker_env" || fail "$docker_env cannot be written"

eval "options=\${$key}"
[ -z "$options" ] || options="$options "
# The script also uses variables of the environment.
names=$(set | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' | grep DOCKER_OPT_ | LC_ALL=C sort -u)
for name in $names; do
	eval "value=\${$name}"
	if [ -n "$individual" ]; then
		printf '%s="%s"\n' "$name" "$value" >>"$docker_env"
	fi
	options="$options $value"
done
if [ -n "$combined" ]; then
	printf '%s="%s"\n' "$key" "$options" >>"$docker_env"
fi

# If a gateway has the subnet now, Docker's bridge would take the subnet from it.
if [ -n "$FLANNEL_SUBNET" ] && command -v ip >/dev/null 2>&1; then
	address=${FLANNEL_SUBNET%/*}
	length=${FLANNEL_SUBNET#*/}
	case $address$length in
	*[!0-9.]*) exit 0 ;;
	esac
	old_ifs=$IFS
	IFS=.
	# shellcheck disable=SC2086
	set -- $address
	IFS=$old_ifs
	[ $# -eq 4 ] && [ "$length" -le 32 ] || exit 0
	bits=$((($1 << 24) | ($2 << 16) | ($3 << 8) | $4))
	bits=$((bits & (0xffffffff << (32 - length))))
	network=$((bits >> 24 & 255)).$((bits >> 16 & 255)).$((bits >> 8 & 255)).$((bits & 255))/$length
	route=$(ip -4 route show exact "$network" 2>/dev/null | grep ' via ')
	if [ -n "$route" ]; then
		fail "this node's own subnet is routed to a gateway ($route): delete that route, then start Docker"
	fi
fi
