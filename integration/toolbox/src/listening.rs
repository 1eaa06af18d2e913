use std::{fmt, fs, process::Command, str::FromStr};

use anyhow::{Context, Result, anyhow};

/// What shows that a server may be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers handle each of them")]
pub enum Listening {
    /// An id of the connection manager listens on this port.
    Cm(u16),
    /// A TCP socket does.
    Tcp(u16),
    /// There is a queue pair for datagrams. The kernel's own ones are of another type.
    Datagrams,
}

impl Listening {
    /// Whether it is so on this host.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    pub fn is_there(self) -> Result<bool> {
        match self {
            Self::Cm(port) => {
                let port = format!(":{port} ");
                let listens = |id: &str| id.contains("LISTEN") && format!("{id} ").contains(&port);
                Ok(resources("cm_id")?.lines().any(listens))
            }
            Self::Tcp(port) => {
                let sockets =
                    fs::read_to_string("/proc/net/tcp")? + &fs::read_to_string("/proc/net/tcp6")?;
                // The second field is the local address and port, the fourth the state; 0A is
                // LISTEN.
                let port = format!(":{port:04X}");
                Ok(sockets.lines().any(|socket| {
                    let fields: Vec<&str> = socket.split_whitespace().collect();
                    fields.len() > 3 && fields[1].ends_with(&port) && fields[3] == "0A"
                }))
            }
            Self::Datagrams => Ok(resources("qp")?.lines().any(|qp| qp.contains("type UD "))),
        }
    }
}

fn resources(kind: &str) -> Result<String> {
    let output = Command::new("rdma")
        .args(["resource", "show", kind])
        .output()
        .context("cannot run rdma, which is in the package iproute2")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cm(port) => write!(f, "cm:{port}"),
            Self::Tcp(port) => write!(f, "tcp:{port}"),
            Self::Datagrams => f.write_str("datagrams"),
        }
    }
}

impl FromStr for Listening {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("cm", port)) => Ok(Self::Cm(port.parse()?)),
            Some(("tcp", port)) => Ok(Self::Tcp(port.parse()?)),
            None if text == "datagrams" => Ok(Self::Datagrams),
            _ => Err(anyhow!("{text:?} is nothing that listens")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread, time::Duration};

    use super::*;
    use crate::Deadline;

    #[test]
    fn a_listening_socket_is_found_until_it_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listening = Listening::Tcp(listener.local_addr().unwrap().port());
        assert!(listening.is_there().unwrap());
        drop(listener);
        // A program that another test starts has it as well, until it is another program.
        let mut deadline = Deadline::after(Duration::from_secs(60));
        while listening.is_there().unwrap() {
            assert!(!deadline.is_over());
            thread::yield_now();
        }
    }

    #[test]
    fn each_is_read_as_it_is_written() {
        for listening in [
            Listening::Cm(7471),
            Listening::Tcp(80),
            Listening::Datagrams,
        ] {
            assert_eq!(
                listening.to_string().parse::<Listening>().unwrap(),
                listening
            );
        }
        assert!("cm:many".parse::<Listening>().is_err());
    }
}
