//! The attributes that each transition between a queue pair's states requires or allows.

use super::{QpAttrMask as A, QpState, QpType};

/// The attributes that a transition requires and allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) required: A,
    pub(super) optional: A,
}

/// Returns the rules of a transition, or `None` if the transition does not exist.
///
/// The rules are defined in section 11.2.5.2 of the InfiniBand specification, volume 1. The Linux
/// kernel contains them as `qp_state_table` (`drivers/infiniband/core/verbs.c`). The returned sets
/// never contain [`A::STATE`]. They contain [`A::CUR_STATE`] only if the kernel's table contains
/// this attribute for the transition.
pub(super) fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    const NONE: A = A::empty();
    let rule = |required: A, optional: A| Some(Transition { required, optional });

    let path = A::ALT_PATH.union(A::ACCESS_FLAGS);
    let migrate = path.union(A::PATH_MIG_STATE);
    let cur = A::CUR_STATE;
    // Selects the set for the type of the queue pair.
    let pick = |rc: A, uc: A, ud: A| match qp_type {
        QpType::RC => rc,
        QpType::UC => uc,
        _ => ud,
    };
    let in_service = cur.union(pick(migrate.union(A::MIN_RNR_TIMER), migrate, A::QKEY));

    match (from, to) {
        (QpState::UNKNOWN, _) => None,
        (_, QpState::RESET) => rule(NONE, NONE),
        (QpState::RESET, QpState::ERR) => None,
        (_, QpState::ERR) => rule(NONE, NONE),
        (QpState::RESET, QpState::INIT) => {
            let connected = A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS;
            rule(
                pick(connected, connected, A::PKEY_INDEX | A::PORT | A::QKEY),
                NONE,
            )
        }
        (QpState::INIT, QpState::INIT) => {
            let connected = A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS;
            rule(
                NONE,
                pick(connected, connected, A::PKEY_INDEX | A::PORT | A::QKEY),
            )
        }
        (QpState::INIT, QpState::RTR) => {
            let uc = A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
            let connected = path | A::PKEY_INDEX;
            rule(
                pick(uc | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER, uc, NONE),
                pick(connected, connected, A::PKEY_INDEX | A::QKEY),
            )
        }
        (QpState::RTR, QpState::RTS) => {
            let rc = A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::SQ_PSN | A::MAX_QP_RD_ATOMIC;
            rule(pick(rc, A::SQ_PSN, A::SQ_PSN), in_service)
        }
        (QpState::RTS | QpState::SQD, QpState::RTS) => rule(NONE, in_service),
        (QpState::RTS, QpState::SQD) => rule(NONE, A::EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD) => {
            let uc = migrate | A::AV | A::PKEY_INDEX;
            let rc = uc
                | A::PORT
                | A::TIMEOUT
                | A::RETRY_CNT
                | A::RNR_RETRY
                | A::MAX_QP_RD_ATOMIC
                | A::MAX_DEST_RD_ATOMIC
                | A::MIN_RNR_TIMER;
            rule(NONE, pick(rc, uc, A::PKEY_INDEX | A::QKEY))
        }
        (QpState::SQE, QpState::RTS) if qp_type != QpType::RC => {
            rule(NONE, pick(NONE, cur | A::ACCESS_FLAGS, cur | A::QKEY))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_transitions_require_these_attributes() {
        let needs = |qp_type, from, to| transition(qp_type, from, to).unwrap().required.to_string();
        let (reset, init, rtr, rts) = (QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS);
        assert_eq!(
            needs(QpType::RC, reset, init),
            "ACCESS_FLAGS | PKEY_INDEX | PORT"
        );
        assert_eq!(needs(QpType::UD, reset, init), "PKEY_INDEX | PORT | QKEY");
        assert_eq!(
            needs(QpType::RC, init, rtr),
            "AV | PATH_MTU | RQ_PSN | MIN_RNR_TIMER | MAX_DEST_RD_ATOMIC | DEST_QPN"
        );
        assert_eq!(
            needs(QpType::UC, init, rtr),
            "AV | PATH_MTU | RQ_PSN | DEST_QPN"
        );
        assert_eq!(needs(QpType::UD, init, rtr), "none");
        assert_eq!(
            needs(QpType::RC, rtr, rts),
            "TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | SQ_PSN"
        );
        assert_eq!(needs(QpType::UD, rtr, rts), "SQ_PSN");
    }

    #[test]
    fn rnr_timer_changes_in_rts_only_on_rc() {
        let may = |qp_type| {
            transition(qp_type, QpState::RTS, QpState::RTS)
                .unwrap()
                .optional
        };
        assert!(may(QpType::RC).contains(A::MIN_RNR_TIMER));
        assert!(!may(QpType::UC).contains(A::MIN_RNR_TIMER));
        assert_eq!(may(QpType::UD), A::CUR_STATE | A::QKEY);
    }

    #[test]
    fn every_state_reaches_reset_and_all_but_reset_err() {
        for from in 0..7 {
            let from = QpState::from_raw(from);
            let to_err = transition(QpType::RC, from, QpState::ERR);
            assert!(
                transition(QpType::RC, from, QpState::RESET).is_some(),
                "{from}"
            );
            assert_eq!(to_err.is_some(), from != QpState::RESET, "{from}");
        }
    }

    #[test]
    fn undefined_transitions_have_no_rule() {
        for (from, to) in [
            (QpState::RESET, QpState::RTR),
            (QpState::RESET, QpState::RTS),
            (QpState::INIT, QpState::RTS),
            (QpState::RTS, QpState::INIT),
            (QpState::ERR, QpState::INIT),
            (QpState::SQE, QpState::RTS),
            (QpState::from_raw(42), QpState::RTS),
        ] {
            assert_eq!(transition(QpType::RC, from, to), None, "{from} {to}");
        }
        assert!(transition(QpType::UD, QpState::SQE, QpState::RTS).is_some());
    }
}
