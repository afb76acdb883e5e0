# Completion of dlock in Elvish, printed by `dlock completions elvish`. dlock itself computes the candidates.

use str

set edit:completion:arg-completer[dlock] = {|@words|
    var current = $words[-1]
    var before = $words[..-1]
    var answer = [values]
    try {
        set answer = [((external $words[0]) __complete '='$current $@before 2>/dev/null | from-lines)]
    } catch error {
        nop # Messages would disturb the command line.
    }
    if (eq $answer[0] files) {
        edit:complete-filename $@words
    } elif (str:has-prefix $answer[0] 'command ') {
        edit:complete-sudo dlock (all $words[(num (str:trim-prefix $answer[0] 'command '))..])
    } else {
        for line $answer[1..] {
            var value = [(str:split "\t" $line)]
            if (== (count $value) 1) {
                edit:complex-candidate $value[0]
            } else {
                edit:complex-candidate $value[0] &display=$value[0]'  ('$value[1]')'
            }
        }
    }
}
