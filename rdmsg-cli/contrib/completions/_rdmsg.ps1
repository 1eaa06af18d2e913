
using namespace System.Management.Automation
using namespace System.Management.Automation.Language

Register-ArgumentCompleter -Native -CommandName 'rdmsg' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $commandElements = $commandAst.CommandElements
    $command = @(
        'rdmsg'
        for ($i = 1; $i -lt $commandElements.Count; $i++) {
            $element = $commandElements[$i]
            if ($element -isnot [StringConstantExpressionAst] -or
                $element.StringConstantType -ne [StringConstantType]::BareWord -or
                $element.Value.StartsWith('-') -or
                $element.Value -eq $wordToComplete) {
                break
        }
        $element.Value
    }) -join ';'

    $completions = @(switch ($command) {
        'rdmsg' {
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Finds out why RDMA or TCP does not work, and prints the commands that fix it')
            [CompletionResult]::new('serve', 'serve', [CompletionResultType]::ParameterValue, 'Answers ping, bench and doctor of other hosts')
            [CompletionResult]::new('ping', 'ping', [CompletionResultType]::ParameterValue, 'Sends messages to `rdmsg serve` and measures their round-trip times')
            [CompletionResult]::new('bench', 'bench', [CompletionResultType]::ParameterValue, 'Measures latency, bandwidth and message rate to `rdmsg serve`')
            [CompletionResult]::new('top', 'top', [CompletionResultType]::ParameterValue, 'Shows the connections of processes that export their statistics')
            [CompletionResult]::new('bridge', 'bridge', [CompletionResultType]::ParameterValue, 'Carries plain TCP connections over RDMA')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Prints the completions of this command for a shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Writes the manual pages to a folder')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'rdmsg;doctor' {
            [CompletionResult]::new('--transport', '--transport', [CompletionResultType]::ParameterName, 'The transport to check')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'The time limit for each step that uses the network')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print all findings as JSON')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only the problems')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only the problems')
            [CompletionResult]::new('--fix', '--fix', [CompletionResultType]::ParameterName, 'If this host has no RDMA device, create a software RoCE device (rxe) before the checks. Requires root')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;serve' {
            [CompletionResult]::new('--transport', '--transport', [CompletionResultType]::ParameterName, 'The transports to listen on')
            [CompletionResult]::new('--max-connections', '--max-connections', [CompletionResultType]::ParameterName, 'The maximum number of open connections. The server aborts further connections')
            [CompletionResult]::new('--max-message', '--max-message', [CompletionResultType]::ParameterName, 'The maximum length in bytes of a message that the server accepts, such as 64K or 1M')
            [CompletionResult]::new('--resume', '--resume', [CompletionResultType]::ParameterName, 'The time limit for resuming a lost connection, 0 to 3600. The client must also set --resume; the smaller limit applies. With 0, lost connections are not resumed')
            [CompletionResult]::new('--statistics', '--statistics', [CompletionResultType]::ParameterName, 'Export statistics for `rdmsg top`')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print no line when a connection ends')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print no line when a connection ends')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;ping' {
            [CompletionResult]::new('-s', '-s', [CompletionResultType]::ParameterName, 'The size of a message in bytes, such as 64, 4K or 1M')
            [CompletionResult]::new('--size', '--size', [CompletionResultType]::ParameterName, 'The size of a message in bytes, such as 64, 4K or 1M')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'The number of messages to send. Each failed attempt to reconnect counts as one message [default: until ctrl-c]')
            [CompletionResult]::new('--count', '--count', [CompletionResultType]::ParameterName, 'The number of messages to send. Each failed attempt to reconnect counts as one message [default: until ctrl-c]')
            [CompletionResult]::new('-i', '-i', [CompletionResultType]::ParameterName, 'The time from one message to the next. With 0, each message is sent as soon as the previous one has come back')
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'The time from one message to the next. With 0, each message is sent as soon as the previous one has come back')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'The time limit for connecting, and for the reply to each message')
            [CompletionResult]::new('--resume', '--resume', [CompletionResultType]::ParameterName, 'The time limit for resuming a lost connection, 0 to 3600. With 0, a lost connection is not resumed. If `rdmsg serve` runs with a smaller --resume, the smaller limit applies')
            [CompletionResult]::new('--transport', '--transport', [CompletionResultType]::ParameterName, 'The transport of the connection')
            [CompletionResult]::new('--histogram', '--histogram', [CompletionResultType]::ParameterName, 'Print a histogram of the round-trip times at the end')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only the summary')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only the summary')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the summary as JSON, and nothing else')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;bench' {
            [CompletionResult]::new('--test', '--test', [CompletionResultType]::ParameterName, 'The tests to run')
            [CompletionResult]::new('--sizes', '--sizes', [CompletionResultType]::ParameterName, 'The message sizes in bytes, such as 64, 4K or 1M [default: sizes that suit each test]')
            [CompletionResult]::new('--connections', '--connections', [CompletionResultType]::ParameterName, 'The numbers of concurrent connections; each number is measured separately')
            [CompletionResult]::new('--transport', '--transport', [CompletionResultType]::ParameterName, 'The transports to compare [default: rdma,tcp if this host has an RDMA device, otherwise tcp]')
            [CompletionResult]::new('--seconds', '--seconds', [CompletionResultType]::ParameterName, 'The duration of each measurement')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'The time limit for connecting, and for each message')
            [CompletionResult]::new('--report', '--report', [CompletionResultType]::ParameterName, 'Also write the results to NAME.json and NAME.md, without private data')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print all results as JSON, and nothing else')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;top' {
            [CompletionResult]::new('-i', '-i', [CompletionResultType]::ParameterName, 'The time between two updates of the table')
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'The time between two updates of the table')
            [CompletionResult]::new('--sort', '--sort', [CompletionResultType]::ParameterName, 'Sort the connections by this value, largest first')
            [CompletionResult]::new('--socket', '--socket', [CompletionResultType]::ParameterName, 'Also read the socket at this path, which a program passed to `Export::start_at`; can be repeated')
            [CompletionResult]::new('-1', '-1', [CompletionResultType]::ParameterName, 'Print the table once, after one interval, and exit')
            [CompletionResult]::new('--once', '--once', [CompletionResultType]::ParameterName, 'Print the table once, after one interval, and exit')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one line of JSON per interval instead of the table')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;bridge' {
            [CompletionResult]::new('--listen', '--listen', [CompletionResultType]::ParameterName, 'The address on which the bridge accepts connections')
            [CompletionResult]::new('--to', '--to', [CompletionResultType]::ParameterName, 'The address to which the bridge connects')
            [CompletionResult]::new('--max-connections', '--max-connections', [CompletionResultType]::ParameterName, 'The maximum number of open connections. The bridge resets further connections immediately')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'The time limit for connecting to the target')
            [CompletionResult]::new('--drain', '--drain', [CompletionResultType]::ParameterName, 'The maximum time for which connections may continue after the first SIGINT or SIGTERM')
            [CompletionResult]::new('--report', '--report', [CompletionResultType]::ParameterName, 'Print the counters at this interval [default: only on SIGUSR1 and at the end]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'The number of threads that copy bytes [default: one per processor]')
            [CompletionResult]::new('--resume', '--resume', [CompletionResultType]::ParameterName, 'The time limit for resuming a connection that was lost between the bridges, 0 to 3600. The programs at the plain ends notice only a pause. Both bridges need this option; the smaller limit applies. With 0, or if one bridge has restarted, a lost connection is reset. The bridge of the service keeps at most 1024 lost connections')
            [CompletionResult]::new('--eager-size', '--eager-size', [CompletionResultType]::ParameterName, 'The maximum number of bytes that a bridge sends at once into a buffer of the other bridge. The other bridge reads larger pieces from the sender''s memory. If the two bridges have different values, the smaller one applies. Over RDMA, each connection locks about 60 buffers of this size [default: 65536 with rdmsg+tcp:// and on hosts without RDMA, otherwise 4096]')
            [CompletionResult]::new('--statistics', '--statistics', [CompletionResultType]::ParameterName, 'Export statistics for `rdmsg top`')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;completions' {
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'rdmsg;man' {
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'rdmsg;help' {
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Finds out why RDMA or TCP does not work, and prints the commands that fix it')
            [CompletionResult]::new('serve', 'serve', [CompletionResultType]::ParameterValue, 'Answers ping, bench and doctor of other hosts')
            [CompletionResult]::new('ping', 'ping', [CompletionResultType]::ParameterValue, 'Sends messages to `rdmsg serve` and measures their round-trip times')
            [CompletionResult]::new('bench', 'bench', [CompletionResultType]::ParameterValue, 'Measures latency, bandwidth and message rate to `rdmsg serve`')
            [CompletionResult]::new('top', 'top', [CompletionResultType]::ParameterValue, 'Shows the connections of processes that export their statistics')
            [CompletionResult]::new('bridge', 'bridge', [CompletionResultType]::ParameterValue, 'Carries plain TCP connections over RDMA')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Prints the completions of this command for a shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Writes the manual pages to a folder')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'rdmsg;help;doctor' {
            break
        }
        'rdmsg;help;serve' {
            break
        }
        'rdmsg;help;ping' {
            break
        }
        'rdmsg;help;bench' {
            break
        }
        'rdmsg;help;top' {
            break
        }
        'rdmsg;help;bridge' {
            break
        }
        'rdmsg;help;completions' {
            break
        }
        'rdmsg;help;man' {
            break
        }
        'rdmsg;help;help' {
            break
        }
    })

    $completions.Where{ $_.CompletionText -like "$wordToComplete*" } |
        Sort-Object -Property ListItemText
}
