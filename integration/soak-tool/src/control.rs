use rdmsg::{Config, Connector, Endpoint, Engine, Error, Listener};
use toolbox::{Lab, Side};

use crate::board::PATIENCE;

/// Where the server's control listener is.
const PORT: u16 = 7600;

/// The connection over which the two programs agree: it carries lines of text, on an engine of its
/// own.
#[derive(Debug)]
pub(crate) struct Control {
    endpoint: Endpoint,
    /// Not dropped before the end: it counts among what exists.
    _listener: Option<Listener>,
}

impl Control {
    /// The one to the other program. The client waits until the server is up.
    pub(crate) fn new(side: Side, lab: &Lab) -> Result<Self, Error> {
        let mut config = Config::default();
        // Everything else may be busy for long where each instruction is emulated.
        config.keepalive_timeout = PATIENCE;
        config.connect_timeout = PATIENCE;
        config.close_timeout = PATIENCE;
        config.retry_refused = true;
        let engine = Engine::new()?;
        match side {
            Side::Server => {
                let listener = Listener::bind_with(lab.at(PORT), &config, &engine)?;
                Ok(Self {
                    endpoint: listener.accept_timeout(PATIENCE)?,
                    _listener: Some(listener),
                })
            }
            Side::Client => Ok(Self {
                endpoint: Connector::new()
                    .config(config)
                    .engine(&engine)
                    .connect(lab.peer_at(PORT))?,
                _listener: None,
            }),
        }
    }

    pub(crate) fn send(&self, line: &str) -> Result<(), Error> {
        self.endpoint.send(line.as_bytes())
    }

    /// The next line from the other program, however long it takes.
    pub(crate) fn receive(&self) -> Result<String, Error> {
        let message = self.endpoint.recv()?;
        Ok(String::from_utf8_lossy(&message).into_owned())
    }

    /// Says goodbye, and waits for the other program's.
    pub(crate) fn close(&self) -> Result<(), Error> {
        self.endpoint.close()
    }
}
