# valgrind.sh MANAGER: a program under valgrind runs unmanaged, and one line says so.
set -eu
$1 valgrind -q /bin/echo hello >out 2>err
case $1 in
*hugeswap*) echo "hugeswap: this program runs unmanaged: it runs under valgrind" | cmp - err ;;
*) cmp /dev/null err ;;
esac
cat out
