# Short numbers for the names of functions, for `cross/layout`: a mangled name has a hundred letters, and the list thousands of names.
#
# Of 4,800 functions that run and 8,000 that do not, some seven share a number of 24 bits with one that runs, and stand beside it for
# nothing. Of those that do not run the list keeps 17 bits: 6 of 100 functions that are newer than it are taken for one of them.

BEGIN {
    for (i = 1; i < 256; i++) code_of[sprintf("%c", i)] = i
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._"
    cold_numbers = 131072
}

# number_of(NAME): from 0 to 2^24 - 4
function number_of(name,    i, number) {
    number = 0
    for (i = 1; i <= length(name); i++) number = (number * 65599 + code_of[substr(name, i, 1)]) % 16777213
    return number
}

# written(NUMBER): in four digits
function written(number,    i, text) {
    text = ""
    for (i = 0; i < 4; i++) {
        text = substr(digits, number % 64 + 1, 1) text
        number = int(number / 64)
    }
    return text
}
