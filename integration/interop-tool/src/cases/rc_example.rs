use crate::case::{Case, Ends, Ready, Side, Who};

const PORT: Ready = Ready::Tcp(19875);

/// The original is not among Debian's programs, so ours meets itself, and some that do not keep to the protocol.
pub(crate) fn cases() -> Vec<Case> {
    let ours = |options: &str| Side::new(Who::Rust, "rc_example", options);
    let bash = |line: &str| Side::new(Who::C, "bash", &format!("-c {line}")).ends(Ends::Somehow);
    let case = |what, server, client| Case::new("rc_example", what, PORT, server, client);
    let talk = |what, both: &str, server: &str| {
        case(
            what,
            ours(both).says("server buffer: \"RDMA write operation\""),
            ours(&format!("{both} {server}"))
                .says("Message is: \"SEND operation      \"")
                .says("server's buffer: \"RDMA read operation \""),
        )
    };
    vec![
        talk("as it comes", "", "{server}").quick(),
        talk("TCP over IPv6", "", "{server6}"),
        talk("device, port, GID index", "-d rxe0 -i 1 -g 0", "{server}"),
        case(
            "a GID index that is not there",
            ours("").ends(Ends::WhenKilled),
            ours("-g 99 {server}")
                .ends(Ends::Badly)
                .says("no GID at index 99"),
        ),
        case(
            "nobody listens on this port",
            ours("").ends(Ends::WhenKilled),
            ours("-p 19876 {server}")
                .ends(Ends::Badly)
                .says("cannot connect to"),
        ),
        case(
            "a client that closes at once",
            ours("")
                .ends(Ends::Badly)
                .says("closed before it had sent where its buffer is"),
            bash("true>/dev/tcp/{server}/19875"),
        ),
        case(
            "a client that sends zeros",
            ours("").ends(Ends::Badly).says("cannot be"),
            bash("head${IFS}-c34${IFS}/dev/zero>/dev/tcp/{server}/19875"),
        ),
        case(
            "a client that sends less than it should",
            ours("")
                .ends(Ends::Badly)
                .says("closed before it had sent where its buffer is"),
            bash("head${IFS}-c33${IFS}/dev/zero>/dev/tcp/{server}/19875"),
        ),
    ]
}
