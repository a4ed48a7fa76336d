#!/bin/sh
# Writes compile_commands.json. stdin: one line per source, "FILE FLAG...": the flags it adds.
# Environment: COMPILE, the compiler and the flags all sources share; BUILD, the build folder.
exec awk '
function esc(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return s }
BEGIN { "pwd" | getline dir; printf "[" }
{
    file = $1; $1 = ""
    out = file; sub(/\.c$/, ".o", out)
    printf "%s\n  {\"directory\": \"%s\", \"file\": \"%s\",\n   \"command\": \"%s\"}", sep, esc(dir),
           esc(file), esc(ENVIRON["COMPILE"] $0 " -c " file " -o " ENVIRON["BUILD"] "/" out)
    sep = ","
}
END { print "\n]" }'
