use std::net::SocketAddr;

use crate::{error::Error, status::OsError};

/// The reason why a transport or a connection id could not be created. It consists of an error for
/// the state machine and, optionally, a more specific error for the application.
#[derive(Debug)]
pub(crate) struct NoTransport {
    pub(crate) error: OsError,
    pub(crate) problem: Option<Error>,
}

impl NoTransport {
    /// Creates the error for a configuration field whose value the system or the device has
    /// refused.
    pub(super) fn refused(
        field: &'static str,
        value: impl ToString,
        allowed: String,
        error: OsError,
    ) -> Self {
        Self {
            error,
            problem: Some(Error::InvalidConfig {
                field,
                value: value.to_string(),
                allowed,
            }),
        }
    }

    /// Creates the error for a traffic class that the system has refused.
    pub(super) fn without_traffic_class(value: u8, error: OsError) -> Self {
        let allowed = format!("only None on this system: {error}");
        Self::refused("traffic_class", value, allowed, error)
    }

    /// Creates the error for a local address from which this side cannot connect.
    pub(super) fn without_source(address: SocketAddr, error: OsError) -> Self {
        Self {
            error,
            problem: Some(Error::Source { address, error }),
        }
    }

    /// Stores the error for the application, if there is one, in `problem`. Returns the error for
    /// the state machine.
    pub(super) fn store(self, problem: &mut Option<Error>) -> OsError {
        *problem = self.problem;
        self.error
    }

    /// Returns the error for the application. This is `problem`, or the result of `otherwise` if
    /// `problem` is `None`.
    pub(crate) fn into_error(self, otherwise: impl FnOnce(OsError) -> Error) -> Error {
        self.problem.unwrap_or_else(|| otherwise(self.error))
    }
}

impl From<OsError> for NoTransport {
    fn from(error: OsError) -> Self {
        Self {
            error,
            problem: None,
        }
    }
}
