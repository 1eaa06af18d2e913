
use builtin;
use str;

set edit:completion:arg-completer[rdmsg] = {|@words|
    fn spaces {|n|
        builtin:repeat $n ' ' | str:join ''
    }
    fn cand {|text desc|
        edit:complex-candidate $text &display=$text' '(spaces (- 14 (wcswidth $text)))$desc
    }
    var command = 'rdmsg'
    for word $words[1..-1] {
        if (str:has-prefix $word '-') {
            break
        }
        set command = $command';'$word
    }
    var completions = [
        &'rdmsg'= {
            cand -h 'Print help'
            cand --help 'Print help'
            cand -V 'Print version'
            cand --version 'Print version'
            cand doctor 'Finds out why RDMA or TCP does not work, and prints the commands that fix it'
            cand serve 'Answers ping, bench and doctor of other hosts'
            cand ping 'Sends messages to `rdmsg serve` and measures their round-trip times'
            cand bench 'Measures latency, bandwidth and message rate to `rdmsg serve`'
            cand top 'Shows the connections of processes that export their statistics'
            cand bridge 'Carries plain TCP connections over RDMA'
            cand completions 'Prints the completions of this command for a shell'
            cand man 'Writes the manual pages to a folder'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'rdmsg;doctor'= {
            cand --transport 'The transport to check'
            cand --timeout 'The time limit for each step that uses the network'
            cand --json 'Print all findings as JSON'
            cand -q 'Print only the problems'
            cand --quiet 'Print only the problems'
            cand --fix 'If this host has no RDMA device, create a software RoCE device (rxe) before the checks. Requires root'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;serve'= {
            cand --transport 'The transports to listen on'
            cand --max-connections 'The maximum number of open connections. The server aborts further connections'
            cand --max-message 'The maximum length in bytes of a message that the server accepts, such as 64K or 1M'
            cand --resume 'The time limit for resuming a lost connection, 0 to 3600. The client must also set --resume; the smaller limit applies. With 0, lost connections are not resumed'
            cand --statistics 'Export statistics for `rdmsg top`'
            cand -q 'Print no line when a connection ends'
            cand --quiet 'Print no line when a connection ends'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;ping'= {
            cand -s 'The size of a message in bytes, such as 64, 4K or 1M'
            cand --size 'The size of a message in bytes, such as 64, 4K or 1M'
            cand -c 'The number of messages to send. Each failed attempt to reconnect counts as one message [default: until ctrl-c]'
            cand --count 'The number of messages to send. Each failed attempt to reconnect counts as one message [default: until ctrl-c]'
            cand -i 'The time from one message to the next. With 0, each message is sent as soon as the previous one has come back'
            cand --interval 'The time from one message to the next. With 0, each message is sent as soon as the previous one has come back'
            cand --timeout 'The time limit for connecting, and for the reply to each message'
            cand --resume 'The time limit for resuming a lost connection, 0 to 3600. With 0, a lost connection is not resumed. If `rdmsg serve` runs with a smaller --resume, the smaller limit applies'
            cand --transport 'The transport of the connection'
            cand --histogram 'Print a histogram of the round-trip times at the end'
            cand -q 'Print only the summary'
            cand --quiet 'Print only the summary'
            cand --json 'Print the summary as JSON, and nothing else'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;bench'= {
            cand --test 'The tests to run'
            cand --sizes 'The message sizes in bytes, such as 64, 4K or 1M [default: sizes that suit each test]'
            cand --connections 'The numbers of concurrent connections; each number is measured separately'
            cand --transport 'The transports to compare [default: rdma,tcp if this host has an RDMA device, otherwise tcp]'
            cand --seconds 'The duration of each measurement'
            cand --timeout 'The time limit for connecting, and for each message'
            cand --report 'Also write the results to NAME.json and NAME.md, without private data'
            cand --json 'Print all results as JSON, and nothing else'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;top'= {
            cand -i 'The time between two updates of the table'
            cand --interval 'The time between two updates of the table'
            cand --sort 'Sort the connections by this value, largest first'
            cand --socket 'Also read the socket at this path, which a program passed to `Export::start_at`; can be repeated'
            cand -1 'Print the table once, after one interval, and exit'
            cand --once 'Print the table once, after one interval, and exit'
            cand --json 'Print one line of JSON per interval instead of the table'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;bridge'= {
            cand --listen 'The address on which the bridge accepts connections'
            cand --to 'The address to which the bridge connects'
            cand --max-connections 'The maximum number of open connections. The bridge resets further connections immediately'
            cand --connect-timeout 'The time limit for connecting to the target'
            cand --drain 'The maximum time for which connections may continue after the first SIGINT or SIGTERM'
            cand --report 'Print the counters at this interval [default: only on SIGUSR1 and at the end]'
            cand --threads 'The number of threads that copy bytes [default: one per processor]'
            cand --resume 'The time limit for resuming a connection that was lost between the bridges, 0 to 3600. The programs at the plain ends notice only a pause. Both bridges need this option; the smaller limit applies. With 0, or if one bridge has restarted, a lost connection is reset. The bridge of the service keeps at most 1024 lost connections'
            cand --eager-size 'The maximum number of bytes that a bridge sends at once into a buffer of the other bridge. The other bridge reads larger pieces from the sender''s memory. If the two bridges have different values, the smaller one applies. Over RDMA, each connection locks about 60 buffers of this size [default: 65536 with rdmsg+tcp:// and on hosts without RDMA, otherwise 4096]'
            cand --statistics 'Export statistics for `rdmsg top`'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;completions'= {
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'rdmsg;man'= {
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'rdmsg;help'= {
            cand doctor 'Finds out why RDMA or TCP does not work, and prints the commands that fix it'
            cand serve 'Answers ping, bench and doctor of other hosts'
            cand ping 'Sends messages to `rdmsg serve` and measures their round-trip times'
            cand bench 'Measures latency, bandwidth and message rate to `rdmsg serve`'
            cand top 'Shows the connections of processes that export their statistics'
            cand bridge 'Carries plain TCP connections over RDMA'
            cand completions 'Prints the completions of this command for a shell'
            cand man 'Writes the manual pages to a folder'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'rdmsg;help;doctor'= {
        }
        &'rdmsg;help;serve'= {
        }
        &'rdmsg;help;ping'= {
        }
        &'rdmsg;help;bench'= {
        }
        &'rdmsg;help;top'= {
        }
        &'rdmsg;help;bridge'= {
        }
        &'rdmsg;help;completions'= {
        }
        &'rdmsg;help;man'= {
        }
        &'rdmsg;help;help'= {
        }
    ]
    $completions[$command]
}
