# Completion of dlock in PowerShell, printed by `dlock completions powershell`. dlock itself computes the
# candidates.

Register-ArgumentCompleter -Native -CommandName dlock -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $elements = @($commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition })
    $before = @($elements | ForEach-Object {
        if ($_ -is [System.Management.Automation.Language.StringConstantExpressionAst]) { $_.Value } else { $_.Extent.Text }
    })
    $current = $wordToComplete.Trim("'", '"')
    $program = $before[0]
    $answer = @(& $program __complete "=$current" @before 2>$null)

    if ($answer[0] -like 'command *') {
        $first = [int]$answer[0].Substring(8)
        $rest = $wordToComplete
        if ($elements.Count -gt $first) {
            $begin = $elements[$first].Extent.StartOffset - $commandAst.Extent.StartOffset
            $rest = $commandAst.Extent.Text.Substring($begin)
            if ($wordToComplete -eq '') { $rest += ' ' }
        }
        [System.Management.Automation.CommandCompletion]::CompleteInput($rest, $rest.Length, $null).CompletionMatches
    } elseif ($answer[0] -eq 'values') {
        $answer | Select-Object -Skip 1 | ForEach-Object {
            $value, $help = $_ -split "`t", 2
            if (-not $help) { $help = $value }
            $typed = $value
            # A name from a store is text, and must never be evaluated by the shell.
            if ($value -match '[^A-Za-z0-9_./:=+%-]') {
                $typed = "'" + [System.Management.Automation.Language.CodeGeneration]::EscapeSingleQuotedStringContent($value) + "'"
            }
            [System.Management.Automation.CompletionResult]::new($typed, $value, 'ParameterValue', $help)
        }
    }
    # Without candidates, PowerShell completes files by itself.
}
