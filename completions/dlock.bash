# Completion of dlock in Bash, printed by `dlock completions bash`. dlock itself computes the candidates.

_dlock() {
    local IFS=$' \t\n' line=${COMP_LINE:0:COMP_POINT} rest word at
    # Bash breaks words at each `:` and `=`, as in redis://host: join the parts that no space separates.
    local words=() starts=()
    for ((at = 0; at <= COMP_CWORD; at++)); do
        word=${COMP_WORDS[at]}
        rest=${line#"${line%%[![:space:]]*}"}
        if ((at == 0)) || [[ $rest != "$line" ]]; then
            starts+=("$at")
            words+=('')
        fi
        ((at < COMP_CWORD)) || word=$rest
        words[${#words[@]} - 1]+=$word
        line=${rest#"$word"}
    done
    # Quotes are not part of a word.
    local last=$((${#words[@]} - 1)) quote=''
    local typed=${words[last]}
    [[ $typed != [\'\"]* ]] || quote=${typed:0:1}
    for at in "${!words[@]}"; do
        words[at]=${words[at]//[\'\"\\]/}
    done
    local current=${words[last]}

    COMPREPLY=()
    local answer
    answer=$("${1/#\~\//$HOME/}" __complete "=$current" "${words[@]:0:last}" 2>/dev/null) || return 0
    case $answer in
    files*)
        return 0 # Without candidates, Bash completes files.
        ;;
    command*)
        at=${answer#command }
        if declare -F _command_offset >/dev/null; then
            _command_offset "${starts[at]}"
        elif ((at == last)); then
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -c -- "$2")
        fi
        return 0
        ;;
    esac

    compopt +o default +o bashdefault 2>/dev/null
    [[ $answer == *$'\n'* ]] || return 0
    # If Bash breaks the word, it replaces only the part after the last break.
    local breaks='' prefix='' value
    if [[ -z $quote ]]; then
        for at in : = @; do
            [[ $COMP_WORDBREAKS != *"$at"* ]] || breaks+=$at
        done
        [[ -z $breaks ]] || prefix=${current%"${current##*["$breaks"]}"}
    fi
    while IFS=$'\t' read -r value rest; do
        value=${value#"$prefix"}
        # A name from a store is text, and must never be evaluated by the shell.
        case $quote in
        \') [[ $value != *\'* ]] || continue ;;
        \") [[ $value != *[\"\$\`\\!]* ]] || continue ;;
        *) printf -v value %q "$value" ;;
        esac
        COMPREPLY+=("$value")
    done <<<"${answer#*$'\n'}"
    if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[:/=] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}

complete -o bashdefault -o default -F _dlock dlock
