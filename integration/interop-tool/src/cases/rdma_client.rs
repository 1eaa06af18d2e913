use crate::case::{Case, Ends, PAIRS, Side, Who};
use toolbox::Listening;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, client) in PAIRS {
        for (what, from, to, port) in [
            ("IPv4", "", "{server}", 7471),
            (
                "IPv4, a port",
                "-s {server} -p 7600",
                "{server} -p 7600",
                7600,
            ),
            ("IPv6", "-s {server6}", "{server6}", 7471),
        ] {
            let server = Side::new(server, "rdma_server", from).says("rdma_server: end 0");
            let client =
                Side::new(client, "rdma_client", &format!("-s {to}")).says("rdma_client: end 0");
            let case = Case::new("rdma_client", what, Listening::Cm(port), server, client);
            cases.push(if what == "IPv4" { case.quick() } else { case });
        }
    }
    let server = Side::new(Who::Rust, "rdma_server", "").ends(Ends::WhenKilled);
    let client = Side::new(Who::Rust, "rdma_client", "-s {server} -p 7999")
        .ends(Ends::Badly)
        .says("rdma_client: end -1");
    cases.push(Case::new(
        "rdma_client",
        "nobody listens on this port",
        Listening::Cm(7471),
        server,
        client,
    ));
    // rping's messages are as long, but it wants to read memory before it answers.
    let server = Side::new(Who::Rust, "rdma_server", "-p 7174").ends(Ends::Somehow);
    let client = Side::new(Who::C, "rping", "-c -C 1 -a {server}").ends(Ends::Somehow);
    cases.push(Case::new(
        "rdma_client",
        "a client that is another program",
        Listening::Cm(7174),
        server,
        client,
    ));
    let server = Side::new(Who::Rust, "rdma_server", "")
        .ends(Ends::Badly)
        .says("rdma_server: end -1")
        .says("failed");
    let client = Side::new(Who::Rust, "raw_cm", "{server}:7471 -s 64 -c 1").ends(Ends::Badly);
    cases.push(Case::new(
        "rdma_client",
        "a client whose message is too long",
        Listening::Cm(7471),
        server,
        client,
    ));
    cases
}
