# Completion of dlock in fish, printed by `dlock completions fish`. dlock itself computes the candidates.

function __dlock_complete
    set -l before (commandline -opc)
    set -l typed (commandline -ct)
    set -l current (string unescape -- $typed; or string replace -ra '[\'"\\\\]' '' -- $typed)
    set -l program (string replace -r '^~/' "$HOME/" -- $before[1])
    set -l answer ($program __complete "=$current" $before 2>/dev/null)
    switch "$answer[1]"
        case files
            __fish_complete_path "$current"
        case 'command *'
            set -l first (math 1 + (string replace 'command ' '' -- $answer[1]))
            complete -C (string join ' ' -- (string escape -- $before[$first..-1]) "$typed")
        case values
            # fish quotes what it inserts except a tilde, which would be expanded.
            string match -v -- '~*' $answer[2..-1]
    end
end

complete -c dlock -e
complete -c dlock -f -k -a '(__dlock_complete)'
