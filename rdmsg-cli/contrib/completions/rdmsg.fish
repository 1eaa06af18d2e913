# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_rdmsg_global_optspecs
    string join \n h/help V/version
end

function __fish_rdmsg_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_rdmsg_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_rdmsg_using_subcommand
    set -l cmd (__fish_rdmsg_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c rdmsg -n "__fish_rdmsg_needs_command" -s h -l help -d 'Print help'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -s V -l version -d 'Print version'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "doctor" -d 'Finds out why RDMA or TCP does not work, and prints the commands that fix it'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "serve" -d 'Answers ping, bench and doctor of other hosts'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "ping" -d 'Sends messages to `rdmsg serve` and measures their round-trip times'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "bench" -d 'Measures latency, bandwidth and message rate to `rdmsg serve`'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "top" -d 'Shows the connections of processes that export their statistics'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "bridge" -d 'Carries plain TCP connections over RDMA'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "completions" -d 'Prints the completions of this command for a shell'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "man" -d 'Writes the manual pages to a folder'
complete -c rdmsg -n "__fish_rdmsg_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand doctor" -l transport -d 'The transport to check' -r -f -a "rdma\t'RDMA; if this host has no RDMA device, also TCP from this host to itself'
tcp\t'Only TCP'"
complete -c rdmsg -n "__fish_rdmsg_using_subcommand doctor" -l timeout -d 'The time limit for each step that uses the network' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand doctor" -l json -d 'Print all findings as JSON'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand doctor" -s q -l quiet -d 'Print only the problems'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand doctor" -l fix -d 'If this host has no RDMA device, create a software RoCE device (rxe) before the checks. Requires root'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand serve" -l transport -d 'The transports to listen on' -r -f -a "auto\t'RDMA if a device serves the address, and TCP otherwise'
rdma\t''
tcp\t''"
complete -c rdmsg -n "__fish_rdmsg_using_subcommand serve" -l max-connections -d 'The maximum number of open connections. The server aborts further connections' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand serve" -l max-message -d 'The maximum length in bytes of a message that the server accepts, such as 64K or 1M' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand serve" -l resume -d 'The time limit for resuming a lost connection, 0 to 3600. The client must also set --resume; the smaller limit applies. With 0, lost connections are not resumed' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand serve" -l statistics -d 'Export statistics for `rdmsg top`'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand serve" -s q -l quiet -d 'Print no line when a connection ends'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -s s -l size -d 'The size of a message in bytes, such as 64, 4K or 1M' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -s c -l count -d 'The number of messages to send. Each failed attempt to reconnect counts as one message [default: until ctrl-c]' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -s i -l interval -d 'The time from one message to the next. With 0, each message is sent as soon as the previous one has come back' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -l timeout -d 'The time limit for connecting, and for the reply to each message' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -l resume -d 'The time limit for resuming a lost connection, 0 to 3600. With 0, a lost connection is not resumed. If `rdmsg serve` runs with a smaller --resume, the smaller limit applies' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -l transport -d 'The transport of the connection' -r -f -a "auto\t'RDMA if a device serves the address, and TCP otherwise'
rdma\t''
tcp\t''"
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -l histogram -d 'Print a histogram of the round-trip times at the end' -r -f -a "true\t''
false\t''"
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -s q -l quiet -d 'Print only the summary'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -l json -d 'Print the summary as JSON, and nothing else'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand ping" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -l test -d 'The tests to run' -r -f -a "latency\t''
bandwidth\t''
rate\t''"
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -l sizes -d 'The message sizes in bytes, such as 64, 4K or 1M [default: sizes that suit each test]' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -l connections -d 'The numbers of concurrent connections; each number is measured separately' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -l transport -d 'The transports to compare [default: rdma,tcp if this host has an RDMA device, otherwise tcp]' -r -f -a "auto\t'RDMA if a device serves the address, and TCP otherwise'
rdma\t''
tcp\t''"
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -l seconds -d 'The duration of each measurement' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -l timeout -d 'The time limit for connecting, and for each message' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -l report -d 'Also write the results to NAME.json and NAME.md, without private data' -r -F
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -l json -d 'Print all results as JSON, and nothing else'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand top" -s i -l interval -d 'The time between two updates of the table' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand top" -l sort -d 'Sort the connections by this value, largest first' -r -f -a "bytes\t''
messages\t''
stalls\t''
held\t''
age\t''"
complete -c rdmsg -n "__fish_rdmsg_using_subcommand top" -l socket -d 'Also read the socket at this path, which a program passed to `Export::start_at`; can be repeated' -r -F
complete -c rdmsg -n "__fish_rdmsg_using_subcommand top" -s 1 -l once -d 'Print the table once, after one interval, and exit'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand top" -l json -d 'Print one line of JSON per interval instead of the table'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l listen -d 'The address on which the bridge accepts connections' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l to -d 'The address to which the bridge connects' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l max-connections -d 'The maximum number of open connections. The bridge resets further connections immediately' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l connect-timeout -d 'The time limit for connecting to the target' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l drain -d 'The maximum time for which connections may continue after the first SIGINT or SIGTERM' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l report -d 'Print the counters at this interval [default: only on SIGUSR1 and at the end]' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l threads -d 'The number of threads that copy bytes [default: one per processor]' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l resume -d 'The time limit for resuming a connection that was lost between the bridges, 0 to 3600. The programs at the plain ends notice only a pause. Both bridges need this option; the smaller limit applies. With 0, or if one bridge has restarted, a lost connection is reset. The bridge of the service keeps at most 1024 lost connections' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l eager-size -d 'The maximum number of bytes that a bridge sends at once into a buffer of the other bridge. The other bridge reads larger pieces from the sender\'s memory. If the two bridges have different values, the smaller one applies. Over RDMA, each connection locks about 60 buffers of this size [default: 65536 with rdmsg+tcp:// and on hosts without RDMA, otherwise 4096]' -r
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -l statistics -d 'Export statistics for `rdmsg top`'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand bridge" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand completions" -s h -l help -d 'Print help'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand man" -s h -l help -d 'Print help'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "doctor" -d 'Finds out why RDMA or TCP does not work, and prints the commands that fix it'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "serve" -d 'Answers ping, bench and doctor of other hosts'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "ping" -d 'Sends messages to `rdmsg serve` and measures their round-trip times'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "bench" -d 'Measures latency, bandwidth and message rate to `rdmsg serve`'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "top" -d 'Shows the connections of processes that export their statistics'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "bridge" -d 'Carries plain TCP connections over RDMA'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "completions" -d 'Prints the completions of this command for a shell'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "man" -d 'Writes the manual pages to a folder'
complete -c rdmsg -n "__fish_rdmsg_using_subcommand help; and not __fish_seen_subcommand_from doctor serve ping bench top bridge completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
