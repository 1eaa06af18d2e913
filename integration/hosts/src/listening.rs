/// A sign that a server accepts connections. A command on the server's host checks for this sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// A connection manager id (`rdma_cm_id`) listens on the given port.
    Cm(u16),
    /// A TCP socket listens on the given port.
    Tcp(u16),
    /// A queue pair of type UD exists. The kernel's own queue pairs have other types.
    Datagrams,
}

impl Listening {
    /// Returns a command whose output shows whether the server accepts connections.
    pub(crate) fn command(self) -> &'static [&'static str] {
        match self {
            Self::Cm(_) => &["rdma", "resource", "show", "cm_id"],
            Self::Tcp(_) => &["cat", "/proc/net/tcp", "/proc/net/tcp6"],
            Self::Datagrams => &["rdma", "resource", "show", "qp"],
        }
    }

    /// Returns true if `printed`, which is the output of `command`, shows that the server accepts
    /// connections.
    pub(crate) fn is_shown_in(self, printed: &str) -> bool {
        printed.lines().any(|line| match self {
            Self::Cm(port) => {
                line.contains("LISTEN") && format!("{line} ").contains(&format!(":{port} "))
            }
            // In each line, the second field is the local address and port, and the fourth field is
            // the state. 0A is TCP_LISTEN.
            Self::Tcp(port) => {
                let mut fields = line.split_whitespace().skip(1).step_by(2);
                let local = fields.next().unwrap_or_default();
                local.ends_with(&format!(":{port:04X}")) && fields.next() == Some("0A")
            }
            Self::Datagrams => line.contains("type UD "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_is_found_by_its_port() {
        let sockets = "  sl  local_address rem_address   st\n   \
                       0: 0100007F:1D2F 00000000:0000 0A 00000000:00000000\n   \
                       1: 0100007F:1D30 0100007F:1D2F 01 00000000:00000000\n";
        assert!(Listening::Tcp(7471).is_shown_in(sockets));
        assert!(!Listening::Tcp(7472).is_shown_in(sockets));
        let ids = "link rxe0/1 cm-idn 0 state LISTEN ps TCP comm rping src-addr 10.8.0.1:7471\n\
                   link rxe0/1 lqpn 17 state CONNECT ps TCP src-addr 10.8.0.1:7472 \n";
        assert!(Listening::Cm(7471).is_shown_in(ids));
        assert!(!Listening::Cm(747).is_shown_in(ids));
        assert!(!Listening::Cm(7472).is_shown_in(ids));
        assert!(Listening::Datagrams.is_shown_in("link rxe0/1 lqpn 18 type UD state RTS\n"));
    }
}
