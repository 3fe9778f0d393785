#!/bin/sh
# A worker that does what its first argument says.
does=$1
shift
case $does in
print)
	echo hello
	printf bye
	;;
tell)
	for arg; do echo "arg $arg"; done
	echo "greeting $GREETING"
	echo "config $MIW_CONFIG"
	echo "key $MIW_KEY"
	echo "token $MIW_TOKEN"
	;;
fail)
	echo failing >&2
	exit 3
	;;
finish)
	trap 'echo finishing; exit 0' TERM
	echo ready
	while :; do sleep 0.05; done
	;;
stay)
	trap '' TERM INT HUP
	echo ready
	while :; do sleep 1; done
	;;
family) # children that leave the group, and ignore TERM as it does
	trap '' TERM
	setsid sh -c 'echo $$ >child; exec sleep 1000' &
	sleep 1000 &
	while [ ! -s child ]; do sleep 0.01; done
	echo ready
	wait
	;;
orphan) # what it leaves behind must not outlive the run
	setsid sleep 1000 &
	echo "left $!"
	;;
here)
	echo "in $(pwd)"
	echo "id $MIW_WORKER_ID addr $MIW_ADDR secret ${MIW_TEST_SECRET-none}"
	ls -A | sed 's/^/has /'
	echo mine >mine
	;;
signal)
	kill -9 $$
	;;
esac
