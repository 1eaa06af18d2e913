use crate::case::{Case, Cue, Ends, PAIRS, Side, Who};
use toolbox::Listening;

const PORT: Listening = Listening::Cm(7174);

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
            // The C server ends with another status when its client disconnects before it has
            // counted that far.
            let mut serving = Side::new(server, "rping", &format!("-s {sizes} {from}"));
            let mut asking = Side::new(client, "rping", &format!("-c {sizes} {to}"));
            if what.ends_with("printed") {
                let text = "ping data: rdma-ping-4: EFGHIJKLMNOPQRSTUVWXYZ";
                serving = serving.says(format!("server {text}"));
                asking = asking.says(text);
            }
            let port = if from.contains("7600") {
                Listening::Cm(7600)
            } else {
                PORT
            };
            let case = Case::new("rping", what, port, serving, asking);
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
        let server = Side::new(Who::Rust, "rping", "-s -P").ends(Ends::WhenKilled);
        let asking = Side::new(client, "rping", "-c -C 20 -V -a {server}");
        let what = "a persistent server, eight clients at once";
        cases.push(Case::new("rping", what, PORT, server, asking).at_once(8));
    }
    cases.push(no_request_is_lost());
    cases.extend(bad_input());
    cases
}

/// A request that finds no place at the server is dropped, and its client asks again after four
/// seconds, then eight: a server that keeps a few waits half a minute for clients that come at the
/// same moment. The kernel counts how often it asked again. On a busy machine that may happen to
/// some.
fn no_request_is_lost() -> Case {
    let asking =
        "retries=/sys/class/infiniband/rxe0/ports/1/cm_tx_retries/req; before=$(cat $retries) &&
        cmtime -s {server} -c 30 && again=$(($(cat $retries) - before)) &&
        echo $again asked again && [ $again -lt 15 ]";
    let mut client = Side::new(Who::C, "bash", "-c");
    client.argv.push(asking.into());
    Case::new(
        "rping",
        "a persistent server, cmtime with 30 connections at once",
        Listening::Cm(7471),
        Side::new(Who::Rust, "rping", "-s -P -p 7471").ends(Ends::WhenKilled),
        client.says("asked again"),
    )
}

fn bad_input() -> Vec<Case> {
    let serving = || Side::new(Who::Rust, "rping", "-s");
    let case = |what, server, client| Case::new("rping", what, PORT, server, client);
    let mut nowhere = Side::new(Who::Rust, "rping", "-c -a");
    nowhere.argv.push(String::new());
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
        ),
        case(
            "a message of another length",
            serving().ends(Ends::Badly).says("a message of 8 bytes"),
            Side::new(Who::Rust, "raw_cm", "{server}:7174 -s 8 -c 1").ends(Ends::Badly),
        ),
        case(
            "a client that is killed",
            Side::new(Who::Rust, "rping", "-s -v"),
            Side::new(Who::C, "rping", "-c -a {server}")
                .killed_on(Cue::OfTheOther("server ping data: rdma-ping-3")),
        ),
        case(
            "a server that is killed",
            Side::new(Who::C, "rping", "-s").killed_on(Cue::OfTheOther("ping data: rdma-ping-3")),
            Side::new(Who::Rust, "rping", "-c -v -a {server}")
                .ends(Ends::Badly)
                .says("disconnected"),
        ),
        case(
            "a client that is not told where to",
            serving().ends(Ends::WhenKilled),
            Side::new(Who::Rust, "rping", "-c")
                .ends(Ends::Badly)
                .says("required arguments were not provided")
                .says("-a <ADDRESS>"),
        ),
        case(
            "an address that is empty",
            serving().ends(Ends::WhenKilled),
            nowhere
                .ends(Ends::Badly)
                .says("give a host name or an IP address"),
        ),
        case(
            "a client of IPv6 at a server of IPv4",
            Side::new(Who::Rust, "rping", "-s -a {server}").ends(Ends::WhenKilled),
            Side::new(Who::Rust, "rping", "-c -a {server6}")
                .ends(Ends::Badly)
                .says("the other of IPv4 and IPv6"),
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
