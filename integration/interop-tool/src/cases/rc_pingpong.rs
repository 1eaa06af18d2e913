use crate::case::{Case, Ends, PAIRS, Side, Who};
use toolbox::Listening;

const PORT: Listening = Listening::Tcp(18515);

/// The program of either. The C program needs the index of a GID on RoCE; ours finds one.
fn side(who: Who, options: &str) -> Side {
    match who {
        Who::C => Side::new(who, "ibv_rc_pingpong", &format!("-g 1 {options}")),
        Who::Rust => Side::new(who, "rc_pingpong", options),
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, client) in PAIRS {
        // What, the options of both, and how many bytes go both ways.
        for (what, both, bytes) in [
            ("as it comes", "", "8192000 bytes in"),
            ("one byte, once", "-s 1 -n 1", "2 bytes in"),
            ("64 KiB", "-s 65536 -n 100", "13107200 bytes in"),
            ("sleeping", "-e -n 500", "4096000 bytes in"),
            (
                "sleeping, two receives",
                "-e -r 2 -n 100",
                "819200 bytes in",
            ),
            ("checked", "-c -s 20000 -n 100", "4000000 bytes in"),
            ("posted part by part", "-N -n 200", "1638400 bytes in"),
            ("path MTU 4096", "-m 4096 -n 200", "1638400 bytes in"),
            ("path MTU 256", "-m 256 -n 50", "409600 bytes in"),
            (
                "device, port, service level",
                "-d rxe0 -i 1 -l 3 -n 50",
                "409600 bytes in",
            ),
            ("TCP port", "-p 19000 -n 50", "409600 bytes in"),
        ] {
            let port = if both.contains("19000") {
                Listening::Tcp(19000)
            } else {
                PORT
            };
            let serving = side(server, both).says(bytes).says("usec/iter");
            let asking = side(client, &format!("{both} {{server}}")).says(bytes);
            let case = Case::new("rc_pingpong", what, port, serving, asking);
            let quick = ["posted part by part", "sleeping", "checked"];
            cases.push(if quick.contains(&what) {
                case.quick()
            } else {
                case
            });
        }
        // The C program listens on IPv4 alone.
        if server == Who::Rust {
            let serving = side(server, "-n 50");
            let asking = side(client, "-n 50 {server6}");
            cases.push(Case::new(
                "rc_pingpong",
                "TCP over IPv6",
                PORT,
                serving,
                asking,
            ));
        }
    }
    cases.extend(bad_input());
    cases
}

fn bad_input() -> Vec<Case> {
    let ours = |options: &str| side(Who::Rust, options).ends(Ends::Badly);
    let bash = |line: &str| {
        let mut side = Side::new(Who::C, "bash", "-c").ends(Ends::Somehow);
        side.argv.push(line.into());
        side
    };
    let other = |kind: &str, options: &str| {
        let program = format!("ibv_{kind}_pingpong");
        Side::new(Who::C, &program, &format!("-g 1 {options}"))
    };
    let case = |what, server, client| Case::new("rc_pingpong", what, PORT, server, client);
    // Soft-RoCE lacks each of these.
    let lacking = |option: &'static str, capability| {
        Case::new(
            "rc_pingpong",
            format!("{option}: what the device has not"),
            PORT,
            ours("").ends(Ends::WhenKilled),
            ours(&format!("{option} {{server}}")).says(capability),
        )
    };
    vec![
        case(
            "a GID index that is not there",
            ours("").ends(Ends::WhenKilled),
            ours("-g 200 {server}").says("no GID at index 200"),
        ),
        case(
            "a device that is not there",
            ours("").ends(Ends::WhenKilled),
            ours("-d mlx9 {server}").says("there is no device mlx9"),
        ),
        case(
            "a port that the device has not",
            ours("").ends(Ends::WhenKilled),
            ours("-i 7 {server}").says("port 7 of"),
        ),
        case(
            "nobody listens on this port",
            ours("").ends(Ends::WhenKilled),
            ours("-p 19999 {server}").says("cannot connect to"),
        ),
        lacking("-o", "on-demand paging"),
        lacking("-O -P", "on-demand paging"),
        lacking("-j", "max_dm_size"),
        lacking("-t", "completion_timestamp_mask"),
        lacking("-P", "-P: only what is taken on demand"),
        lacking("-U", "confidential guest"),
        case(
            "a client that closes at once",
            ours("").says("closed before it had sent its address"),
            bash("true>/dev/tcp/{server}/18515"),
        ),
        case(
            "a client that sends zeros",
            ours("").says("is no address"),
            bash("head -c52 /dev/zero >/dev/tcp/{server}/18515"),
        ),
        case(
            "a client that sends less than an address",
            ours("").says("closed before it had sent its address"),
            bash("head -c20 /dev/zero >/dev/tcp/{server}/18515"),
        ),
        case(
            "a client that is no such program",
            ours("").says("GET / HTTP/1.1").says("ibv_rc_pingpong"),
            bash("echo GET / HTTP/1.1 >/dev/tcp/{server}/18515"),
        ),
        case(
            "a client that sends a byte now and then",
            ours("").says("did not send its address within 30s"),
            bash("while sleep 1 && echo; do :; done >/dev/tcp/{server}/18515"),
        ),
        case(
            "a client with an unreliable connection",
            ours("").says("ibv_uc_pingpong"),
            other("uc", "{server}").ends(Ends::WhenKilled),
        ),
        case(
            "a client without a connection",
            ours("-e").says("ibv_ud_pingpong"),
            other("ud", "{server}").ends(Ends::WhenKilled),
        ),
        case(
            "a client with shared receives",
            ours("").says("where \"done\" is expected"),
            // It goes on without addresses.
            other("srq", "{server}").ends(Ends::WhenKilled),
        ),
        case(
            "a server with an unreliable connection",
            other("uc", "").ends(Ends::WhenKilled),
            ours("{server}").says("ibv_uc_pingpong"),
        ),
        case(
            "a server without a connection",
            other("ud", "").ends(Ends::WhenKilled),
            ours("{server}").says("ibv_ud_pingpong"),
        ),
        case(
            "a server with shared receives",
            other("srq", "").ends(Ends::WhenKilled),
            ours("{server}")
                .says("expected are 52 bytes, 0 came")
                .says("siblings"),
        ),
        case(
            "the client's messages are longer",
            ours("-s 100").says("failed"),
            ours("-s 4096 {server}"),
        ),
        case(
            "the server sends fewer messages",
            ours("-n 10").ends(Ends::Somehow),
            ours("-n 20 {server}"),
        ),
    ]
}
