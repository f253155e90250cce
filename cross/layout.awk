# Prints the linker script of `cross/layout script`. Reads the list; then name and section of every function of the object, with a tab
# between; then what `readelf -SrsW` prints about the object.
#
# One function that runs amid those that do not has 64 KiB mapped, and inlining changes with every edit, anywhere: of Rust's library
# another function may stand for itself in the next build than in the list's. So of what did not run, these stand beside what did:
# functions of the library that it may call, directly or through each other, and what functions newer than the list call. Of ring's
# functions the processor decides which run.
#
# What only functions that do not run refer to of the constants comes last among these.

FNR == 1 { input++ }

# the list: "+" and a name of C, the number of a function of Rust, or "-" and the numbers of those that do not run
input == 1 && /^-/ {
    count = split(substr($0, 2), distances, " ")
    for (i = 1; i <= count; i++) {
        number += distances[i]
        cold[number] = 1
    }
    next
}
input == 1 {
    name = $0
    sub(/^\+/, "", name)
    place[name] = ++places
    # C and assembly are not in the object: by section, or where it has no name by file
    if (/^\+:/) printed[places] = "*" substr(name, 2) "(.text)\n"
    else if (/^\+/) printed[places] = "*(.text." name ")\n"
    next
}

input == 2 {
    split($0, columns, "\t")
    name = columns[1]; section = columns[2]
    number = number_of(name)
    listed = name ~ /^_R/ ? written(number) : name
    kind[section] = listed in place ? "+" : number % cold_numbers in cold ? "-" : "new"
    is_library[section] = match(name, /C[0-9]+[a-z]/) && substr(name, RSTART) ~ /^C(4core|5alloc|3std|3log|4ring)/
    functions[++function_count] = section
    if (kind[section] == "+" && name ~ /^_R/) printed[place[listed]] = printed[place[listed]] "*(" section ")\n"
    next
}

# readelf: "[ 12] .text.NAME PROGBITS ADDRESS OFFSET ...", "[ 13] .rela.text.NAME RELA ADDRESS OFFSET ... NUMBER ALIGNMENT",
# "Relocation section '.rela.tex' at offset 0xOFFSET ...", where long names are cut, "OFFSET INFO R_TYPE VALUE SYMBOL + ADDEND",
# "NUMBER: VALUE SIZE TYPE BIND VISIBILITY SECTION SYMBOL"
/^ *\[ *[0-9]+\] / {
    gsub(/[][]/, " ")
    section_of_number[$1] = $2
    section_of[$2] = $2
    if ($2 ~ /^\.rodata\./ && $3 == "PROGBITS") data[++data_count] = $2
    offset = $5
    sub(/^0+/, "", offset)
    if ($3 ~ /^RELA?$/) number_at[offset] = $(NF - 1)
    next
}
/^Relocation section / {
    offset = $0
    sub(/^.* at offset 0x/, "", offset)
    sub(/ .*/, "", offset)
    from = section_of_number[number_at[offset]]
    # what the program's own variables hold may be read by anything that runs
    if (from !~ /^\.(text|rodata|debug|eh_frame|ARM)/) runs[++running] = from
    next
}
$3 ~ /^R_/ { uses[from] = uses[from] " " $5; next }
$1 ~ /^[0-9]+:$/ && $7 in section_of_number { section_of[$8] = section_of_number[$7] }

END {
    for (i = 1; i <= function_count; i++) if (kind[functions[i]] != "-") runs[++running] = functions[i]
    # "running" grows meanwhile
    for (i = 1; i <= running; i++) {
        count = split(uses[runs[i]], symbols, " ")
        for (j = 1; j <= count; j++) {
            used = section_of[symbols[j]]
            if (used ~ /^\.rodata\./ && !(used in is_used)) {
                is_used[used] = 1
                runs[++running] = used
            }
            if (kind[used] == "-" && (is_library[used] && runs[i] !~ /^\.rodata/ || kind[runs[i]] == "new")) {
                kind[used] = "near"
                runs[++running] = used
            }
        }
    }
    print "SECTIONS { .text.hot : {"
    # what qemu-user does not show: divisions by whatever name (500 bytes), the kernel's clock (vDSO), other processors' AES
    print "*libcompiler_builtins*:*(.text .text.*)"
    print "*(.text.strcmp)"
    print "*aes*.o(.text)"
    print "*ghash*.o(.text)"
    for (i = 1; i <= places; i++) printf "%s", printed[i]
    for (i = 1; i <= function_count; i++) if (kind[functions[i]] == "new") print "*(" functions[i] ")"
    for (i = 1; i <= function_count; i++) if (kind[functions[i]] == "near") print "*(" functions[i] ")"
    print "} } INSERT BEFORE .text;"
    print "SECTIONS { .rodata.cold : {"
    for (i = 1; i <= data_count; i++) if (!(data[i] in is_used)) print "*(" data[i] ")"
    print "} } INSERT AFTER .rodata;"
}
