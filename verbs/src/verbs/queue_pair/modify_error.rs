use std::{error::Error, fmt, io};

use rdma_status::OsError;

use super::{QpAttr, QpAttrMask, QpState, QpType, transition::transition};

/// The error of a failed `modify` call, together with the InfiniBand rules that the call violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModifyError {
    /// The error that libibverbs returned.
    pub error: OsError,
    /// The current state of the queue pair, or `None` if it could not be queried.
    pub from: Option<QpState>,
    /// The requested state. If the call requested no state, this field is equal to `from`.
    pub to: Option<QpState>,
    /// Whether the rules define a transition from `from` to `to`. Also true if `from` or `to` is
    /// `None`.
    pub possible: bool,
    /// The attributes that this transition requires but the call did not pass.
    pub missing: QpAttrMask,
    /// The attributes that the call passed but this transition does not allow.
    pub invalid: QpAttrMask,
}

impl ModifyError {
    /// Creates the error for a queue pair in the state `from`, and records which rules `attr`
    /// violates.
    pub(super) fn new(
        error: OsError,
        qp_type: QpType,
        from: Option<QpState>,
        attr: &QpAttr,
    ) -> Self {
        let none = QpAttrMask::empty();
        let to = attr.qp_state.or(from);
        let mut result = Self {
            error,
            from,
            to,
            possible: true,
            missing: none,
            invalid: none,
        };
        if let (Some(from), Some(to)) = (from, to) {
            match transition(qp_type, from, to) {
                None => result.possible = false,
                Some(rule) => {
                    let given = attr.mask().difference(QpAttrMask::STATE);
                    result.missing = rule.required.difference(given);
                    result.invalid = given.difference(rule.required | rule.optional);
                }
            }
        }
        result
    }
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            error,
            from,
            to,
            possible,
            missing,
            invalid,
        } = self;
        error.fmt(f)?;
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(());
        };
        write!(f, ": from {from} to {to}")?;
        if !possible {
            return f.write_str(", which is not a valid transition");
        }
        match (missing.is_empty(), invalid.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => write!(f, ", missing {missing}"),
            (true, false) => write!(f, ", not allowed {invalid}"),
            (false, false) => write!(f, ", missing {missing}, not allowed {invalid}"),
        }
    }
}

impl Error for ModifyError {}

impl From<ModifyError> for OsError {
    fn from(error: ModifyError) -> Self {
        error.error
    }
}

impl From<ModifyError> for io::Error {
    fn from(error: ModifyError) -> Self {
        Self::new(Self::from(error.error).kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(from: Option<QpState>, attr: &QpAttr) -> String {
        let error = OsError::new("ibv_modify_qp", libc::EINVAL);
        let text = ModifyError::new(error, QpType::RC, from, attr).to_string();
        text.strip_prefix(&error.to_string()).unwrap().to_owned()
    }

    #[test]
    fn error_names_missing_and_invalid_attributes() {
        let init = QpAttr {
            qp_state: Some(QpState::INIT),
            port_num: Some(1),
            ..QpAttr::default()
        };
        assert_eq!(
            explain(Some(QpState::RESET), &init),
            ": from RESET to INIT, missing ACCESS_FLAGS | PKEY_INDEX"
        );
        let with_qkey = QpAttr {
            qkey: Some(1),
            ..init
        };
        assert_eq!(
            explain(Some(QpState::RESET), &with_qkey),
            ": from RESET to INIT, missing ACCESS_FLAGS | PKEY_INDEX, not allowed QKEY"
        );
        let err = QpAttr {
            qp_state: Some(QpState::ERR),
            timeout: Some(1),
            ..QpAttr::default()
        };
        assert_eq!(
            explain(Some(QpState::RTS), &err),
            ": from RTS to ERR, not allowed TIMEOUT"
        );
    }

    #[test]
    fn error_names_an_undefined_transition() {
        let rts = QpAttr {
            qp_state: Some(QpState::RTS),
            ..QpAttr::default()
        };
        assert_eq!(
            explain(Some(QpState::RESET), &rts),
            ": from RESET to RTS, which is not a valid transition"
        );
    }

    #[test]
    fn error_omits_unknown_state_and_violations() {
        let timer = QpAttr {
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        };
        assert_eq!(explain(Some(QpState::RTS), &timer), ": from RTS to RTS");
        assert_eq!(explain(None, &timer), "");
        let error = ModifyError::new(
            OsError::new("ibv_modify_qp", libc::ENOMEM),
            QpType::RC,
            None,
            &timer,
        );
        assert_eq!(OsError::from(error).errno, libc::ENOMEM);
    }
}
