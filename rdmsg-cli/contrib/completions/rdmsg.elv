
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
            cand serve 'Serves ping, bench and the doctor of other hosts'
            cand ping 'Sends messages to `rdmsg serve` and measures the time until they come back'
            cand bench 'Measures latency, bandwidth and message rate to `rdmsg serve`'
            cand top 'Shows the connections of processes that export their statistics'
            cand bridge 'Carries plain TCP connections over RDMA'
            cand completions 'Prints completions for a shell'
            cand man 'Writes the pages of the manual to a folder'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'rdmsg;doctor'= {
            cand --transport 'The transport that has to work'
            cand --timeout 'The time limit of each step that uses the network'
            cand --json 'Print all findings as JSON'
            cand -q 'Show problems only'
            cand --quiet 'Show problems only'
            cand --fix 'Create a software RoCE device (rxe) first, if this host has no RDMA device. Requires root'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;serve'= {
            cand --transport 'The transports to listen on'
            cand --max-connections 'The maximum number of open connections. The server aborts each further connection'
            cand --max-message 'The longest message that a client can send, in bytes'
            cand --resume 'The time that a lost connection waits for its client to resume it, 0 to 3600 seconds. The client must also set --resume'
            cand --statistics 'Export statistics for `rdmsg top`'
            cand -q 'Print no line when a connection ends'
            cand --quiet 'Print no line when a connection ends'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;ping'= {
            cand -s 'The size of a message in bytes, such as 64, 4K or 1M'
            cand --size 'The size of a message in bytes, such as 64, 4K or 1M'
            cand -c 'The number of messages. A failed attempt to reconnect counts as one message [default: until ctrl-c]'
            cand --count 'The number of messages. A failed attempt to reconnect counts as one message [default: until ctrl-c]'
            cand -i 'The time between two messages. With 0, the next message is sent when the previous one has come back'
            cand --interval 'The time between two messages. With 0, the next message is sent when the previous one has come back'
            cand --timeout 'The time limit for an answer, and for connecting'
            cand --resume 'The time for which a lost connection waits to be resumed, 0 to 3600. With 0 a lost connection ends. The smaller of this time and the --resume of `rdmsg serve` applies'
            cand --transport 'The transport of the connection'
            cand --histogram 'Print a histogram of the times at the end'
            cand -q 'Print only the summary'
            cand --quiet 'Print only the summary'
            cand --json 'Print the summary as JSON, and nothing else'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;bench'= {
            cand --test 'The tests to run'
            cand --sizes 'The size of a message in bytes, such as 64, 4K or 1M [default: several sizes that suit the test]'
            cand --connections 'The numbers of concurrent connections'
            cand --transport 'The transports to compare [default: rdma,tcp with an RDMA device, and tcp without]'
            cand --seconds 'The duration of each measurement'
            cand --timeout 'The time limit for establishing a connection, and for each message'
            cand --report 'Write the results without private data to NAME.json and NAME.md, for others to compare'
            cand --json 'Print all results as JSON, and nothing else'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;top'= {
            cand -i 'The time between two readings of the counters'
            cand --interval 'The time between two readings of the counters'
            cand --sort 'The value by which the connections are sorted, the largest first'
            cand --socket 'Another socket to read, at the path that the program passed to `Export::start_at`; can be repeated'
            cand -1 'Print the table once, after one interval, and exit'
            cand --once 'Print the table once, after one interval, and exit'
            cand --json 'Print a line of JSON for each reading'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'rdmsg;bridge'= {
            cand --listen 'The address on which the bridge accepts connections'
            cand --to 'The address to which the bridge connects'
            cand --max-connections 'The maximum number of connections. The bridge closes further connections immediately'
            cand --connect-timeout 'The time limit for connecting to the target'
            cand --drain 'The time for which connections may continue after the first SIGINT or SIGTERM'
            cand --report 'Print the counters at this interval [default: only on SIGUSR1 and at the end]'
            cand --threads 'The number of threads that carry bytes [default: one for each processor]'
            cand --resume 'The time for which a connection that was lost between the bridges can be resumed, 0 to 3600. The plain ends see only a pause. Both bridges need this option; the smaller time applies. With 0, or after a restart of one bridge, a lost connection is reset. The bridge of the service keeps at most 1024 lost connections'
            cand --eager-size 'The longest piece in bytes that is sent into a buffer of the peer. The peer reads longer pieces from the sender''s memory. The smaller of the two bridges'' values applies. A connection over RDMA locks about 60 buffers of this size [default: 65536 with rdmsg+tcp:// and on hosts without RDMA, otherwise 4096]'
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
            cand serve 'Serves ping, bench and the doctor of other hosts'
            cand ping 'Sends messages to `rdmsg serve` and measures the time until they come back'
            cand bench 'Measures latency, bandwidth and message rate to `rdmsg serve`'
            cand top 'Shows the connections of processes that export their statistics'
            cand bridge 'Carries plain TCP connections over RDMA'
            cand completions 'Prints completions for a shell'
            cand man 'Writes the pages of the manual to a folder'
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
