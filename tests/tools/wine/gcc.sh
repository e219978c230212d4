# Called by gcc.exe or objdump.exe with its path, a file for the answer, and its arguments. C: and Z: are drives of Wine.
to_linux() {
    local path=${1//\\//}
    path=${path//[Zz]:\//\/}
    printf %s "${path//[Cc]:\//$WINEPREFIX/drive_c/}"
}
program=$(basename "$(to_linux "$1")" .exe)
answer=$(to_linux "$2")
shift 2
arguments=()
for argument in "$@"; do arguments+=("$(to_linux "$argument")"); done
output=$(PATH=/usr/bin:/bin "x86_64-w64-mingw32-$program" "${arguments[@]}" 2>&1)
printf '%d.\n%s\n' $? "$output" > "$answer.new"
mv "$answer.new" "$answer"
