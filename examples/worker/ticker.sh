#!/bin/sh
# A worker for the runtime exec: it says each second that it is there, until it should finish.
trap 'echo "finishing"; exit 0' TERM

echo "began under token $MIW_TOKEN"
n=0
while :; do
	n=$((n + 1))
	echo "tick $n"
	sleep 1 & wait $!
done
