
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
            [CompletionResult]::new('serve', 'serve', [CompletionResultType]::ParameterValue, 'Serves ping, bench and the doctor of other hosts')
            [CompletionResult]::new('ping', 'ping', [CompletionResultType]::ParameterValue, 'Sends messages to `rdmsg serve` and measures the time until they come back')
            [CompletionResult]::new('bench', 'bench', [CompletionResultType]::ParameterValue, 'Measures latency, bandwidth and message rate to `rdmsg serve`')
            [CompletionResult]::new('top', 'top', [CompletionResultType]::ParameterValue, 'Shows the connections of processes that export their statistics')
            [CompletionResult]::new('bridge', 'bridge', [CompletionResultType]::ParameterValue, 'Carries plain TCP connections over RDMA')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Prints completions for a shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Writes the pages of the manual to a folder')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'rdmsg;doctor' {
            [CompletionResult]::new('--transport', '--transport', [CompletionResultType]::ParameterName, 'The transport that has to work')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'The time limit of each step that uses the network')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print all findings as JSON')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Show problems only')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Show problems only')
            [CompletionResult]::new('--fix', '--fix', [CompletionResultType]::ParameterName, 'Create a software RoCE device (rxe) first, if this host has no RDMA device. Requires root')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;serve' {
            [CompletionResult]::new('--transport', '--transport', [CompletionResultType]::ParameterName, 'The transports to listen on')
            [CompletionResult]::new('--max-connections', '--max-connections', [CompletionResultType]::ParameterName, 'The maximum number of open connections. The server aborts each further connection')
            [CompletionResult]::new('--max-message', '--max-message', [CompletionResultType]::ParameterName, 'The longest message that a client can send, in bytes')
            [CompletionResult]::new('--resume', '--resume', [CompletionResultType]::ParameterName, 'The time that a lost connection waits for its client to resume it, 0 to 3600 seconds. The client must also set --resume')
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
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'The number of messages. A failed attempt to reconnect counts as one message [default: until ctrl-c]')
            [CompletionResult]::new('--count', '--count', [CompletionResultType]::ParameterName, 'The number of messages. A failed attempt to reconnect counts as one message [default: until ctrl-c]')
            [CompletionResult]::new('-i', '-i', [CompletionResultType]::ParameterName, 'The time between two messages. With 0, the next message is sent when the previous one has come back')
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'The time between two messages. With 0, the next message is sent when the previous one has come back')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'The time limit for an answer, and for connecting')
            [CompletionResult]::new('--resume', '--resume', [CompletionResultType]::ParameterName, 'The time for which a lost connection waits to be resumed, 0 to 3600. With 0 a lost connection ends. The smaller of this time and the --resume of `rdmsg serve` applies')
            [CompletionResult]::new('--transport', '--transport', [CompletionResultType]::ParameterName, 'The transport of the connection')
            [CompletionResult]::new('--histogram', '--histogram', [CompletionResultType]::ParameterName, 'Print a histogram of the times at the end')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only the summary')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only the summary')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the summary as JSON, and nothing else')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;bench' {
            [CompletionResult]::new('--test', '--test', [CompletionResultType]::ParameterName, 'The tests to run')
            [CompletionResult]::new('--sizes', '--sizes', [CompletionResultType]::ParameterName, 'The size of a message in bytes, such as 64, 4K or 1M [default: several sizes that suit the test]')
            [CompletionResult]::new('--connections', '--connections', [CompletionResultType]::ParameterName, 'The numbers of concurrent connections')
            [CompletionResult]::new('--transport', '--transport', [CompletionResultType]::ParameterName, 'The transports to compare [default: rdma,tcp with an RDMA device, and tcp without]')
            [CompletionResult]::new('--seconds', '--seconds', [CompletionResultType]::ParameterName, 'The duration of each measurement')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'The time limit for establishing a connection, and for each message')
            [CompletionResult]::new('--report', '--report', [CompletionResultType]::ParameterName, 'Write the results without private data to NAME.json and NAME.md, for others to compare')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print all results as JSON, and nothing else')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;top' {
            [CompletionResult]::new('-i', '-i', [CompletionResultType]::ParameterName, 'The time between two readings of the counters')
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'The time between two readings of the counters')
            [CompletionResult]::new('--sort', '--sort', [CompletionResultType]::ParameterName, 'The value by which the connections are sorted, the largest first')
            [CompletionResult]::new('--socket', '--socket', [CompletionResultType]::ParameterName, 'Another socket to read, at the path that the program passed to `Export::start_at`; can be repeated')
            [CompletionResult]::new('-1', '-1', [CompletionResultType]::ParameterName, 'Print the table once, after one interval, and exit')
            [CompletionResult]::new('--once', '--once', [CompletionResultType]::ParameterName, 'Print the table once, after one interval, and exit')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print a line of JSON for each reading')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'rdmsg;bridge' {
            [CompletionResult]::new('--listen', '--listen', [CompletionResultType]::ParameterName, 'The address on which the bridge accepts connections')
            [CompletionResult]::new('--to', '--to', [CompletionResultType]::ParameterName, 'The address to which the bridge connects')
            [CompletionResult]::new('--max-connections', '--max-connections', [CompletionResultType]::ParameterName, 'The maximum number of connections. The bridge closes further connections immediately')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'The time limit for connecting to the target')
            [CompletionResult]::new('--drain', '--drain', [CompletionResultType]::ParameterName, 'The time for which connections may continue after the first SIGINT or SIGTERM')
            [CompletionResult]::new('--report', '--report', [CompletionResultType]::ParameterName, 'Print the counters at this interval [default: only on SIGUSR1 and at the end]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'The number of threads that carry bytes [default: one for each processor]')
            [CompletionResult]::new('--resume', '--resume', [CompletionResultType]::ParameterName, 'The time for which a connection that was lost between the bridges can be resumed, 0 to 3600. The plain ends see only a pause. Both bridges need this option; the smaller time applies. With 0, or after a restart of one bridge, a lost connection is reset. The bridge of the service keeps at most 1024 lost connections')
            [CompletionResult]::new('--eager-size', '--eager-size', [CompletionResultType]::ParameterName, 'The longest piece in bytes that is sent into a buffer of the peer. The peer reads longer pieces from the sender''s memory. The smaller of the two bridges'' values applies. A connection over RDMA locks about 60 buffers of this size [default: 65536 with rdmsg+tcp:// and on hosts without RDMA, otherwise 4096]')
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
            [CompletionResult]::new('serve', 'serve', [CompletionResultType]::ParameterValue, 'Serves ping, bench and the doctor of other hosts')
            [CompletionResult]::new('ping', 'ping', [CompletionResultType]::ParameterValue, 'Sends messages to `rdmsg serve` and measures the time until they come back')
            [CompletionResult]::new('bench', 'bench', [CompletionResultType]::ParameterValue, 'Measures latency, bandwidth and message rate to `rdmsg serve`')
            [CompletionResult]::new('top', 'top', [CompletionResultType]::ParameterValue, 'Shows the connections of processes that export their statistics')
            [CompletionResult]::new('bridge', 'bridge', [CompletionResultType]::ParameterValue, 'Carries plain TCP connections over RDMA')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Prints completions for a shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Writes the pages of the manual to a folder')
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
