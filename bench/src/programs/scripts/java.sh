# java: two maps, one sorted, with objects in them.
set -eu
exec java -XX:+UseG1GC -Xmx$(($1 >> 10))k "$(dirname "$0")/Maps.java" "$1"
