use crate::case::{Case, Ends, PAIRS, Ready, Side, Who};

const PORT: Ready = Ready::Cm(7174);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, client) in PAIRS {
        // What, how many, how large, and the server's and the client's other options.
        for (what, count, size, from, to) in [
            ("64 B, printed", 5, 64, "-v", "-a {server} -v"),
            ("the smallest", 100, 23, "", "-a {server} -V"),
            ("4 KiB", 100, 4096, "", "-a {server} -V"),
            ("the largest, 1000 times", 1000, 65535, "", "-a {server} -V"),
            ("one", 1, 64, "", "-a {server} -V"),
            ("IPv6", 100, 1000, "-a {server6}", "-a {server6} -V"),
            ("any IPv6 address", 10, 1000, "-a ::0", "-a {server6} -V"),
            (
                "a port and an address to connect from",
                10,
                64,
                "-p 7600",
                "-a {server} -p 7600 -I {client} -V",
            ),
            (
                "queue pairs of their own",
                100,
                1000,
                "-q",
                "-a {server} -q -V",
            ),
            (
                "the server's queue pair its own",
                10,
                1000,
                "-q",
                "-a {server} -V",
            ),
            (
                "the client's queue pair its own",
                10,
                1000,
                "",
                "-a {server} -q -V",
            ),
        ] {
            let sizes = format!("-C {count} -S {size}");
            // The C server ends with another status when its client disconnects before it has counted that far.
            let mut serving = Side::new(server, "rping", &format!("-s {sizes} {from}"));
            let mut asking = Side::new(client, "rping", &format!("-c {sizes} {to}"));
            if what.ends_with("printed") {
                let text = "ping data: rdma-ping-4: EFGHIJKLMNOPQRSTUVWXYZ";
                serving = serving.says(format!("server {text}"));
                asking = asking.says(text);
            }
            let port = if from.contains("7600") {
                Ready::Cm(7600)
            } else {
                PORT
            };
            let case = Case::new("rping", what, port, serving, asking).seconds(60);
            let quick = ["64 B, printed", "4 KiB", "IPv6", "queue pairs of their own"];
            cases.push(if quick.contains(&what) {
                case.quick()
            } else {
                case
            });
        }
    }
    for client in [Who::Rust, Who::C] {
        let server = Side::new(Who::Rust, "rping", "-s -P").ends(Ends::WhenKilled);
        let asking = Side::new(client, "rping", "-c -C 20 -V -a {server}");
        let mut case = Case::new(
            "rping",
            "a persistent server, five clients in turn",
            PORT,
            server,
            asking.clone(),
        );
        case.clients = vec![asking; 5];
        cases.push(case);
    }
    cases.extend(bad_input());
    cases
}

fn bad_input() -> Vec<Case> {
    let serving = || Side::new(Who::Rust, "rping", "-s");
    let case = |what, server, client| Case::new("rping", what, PORT, server, client);
    vec![
        case(
            "nobody listens on this port",
            serving().ends(Ends::WhenKilled),
            Side::new(Who::Rust, "rping", "-c -a {server} -p 7999 -C 1")
                .ends(Ends::Badly)
                .says("refused"),
        ),
        case(
            "the client has more than the server",
            Side::new(Who::Rust, "rping", "-s -S 64")
                .ends(Ends::Badly)
                .says("-S must be the same"),
            Side::new(Who::C, "rping", "-c -C 1 -S 100 -a {server}").ends(Ends::Somehow),
        ),
        case(
            "a client that offers nothing",
            serving().ends(Ends::Badly).says("offers 0 bytes"),
            // It does not notice that the server is gone.
            Side::new(Who::C, "rdma_client", "-p 7174 -s {server}").ends(Ends::WhenKilled),
        )
        .seconds(3),
        case(
            "a message of another length",
            serving().ends(Ends::Badly).says("a message of 8 bytes"),
            Side::new(Who::Rust, "raw_cm", "{server}:7174 -s 8 -c 1").ends(Ends::Badly),
        ),
        case(
            "a client that is killed",
            serving(),
            Side::new(Who::C, "timeout", "-s KILL 1 rping -c -a {server}").ends(Ends::Somehow),
        ),
        case(
            "a server that is killed",
            Side::new(Who::C, "timeout", "-s KILL 2 rping -s").ends(Ends::Somehow),
            Side::new(Who::Rust, "rping", "-c -a {server}")
                .ends(Ends::Badly)
                .says("disconnected"),
        ),
        case(
            "a size that is too small",
            serving().ends(Ends::WhenKilled),
            Side::new(Who::Rust, "rping", "-c -a {server} -S 22")
                .ends(Ends::Badly)
                .says("22 is not in 23..=65535"),
        ),
    ]
}
