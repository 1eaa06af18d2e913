//! Tests in which one side closes while the other side aborts, in many orders of events.

use super::{
    pair,
    pair::{A, B, Pair, Step},
};
use crate::CloseReason;

const CODE: u32 = 9;

/// Returns all permutations of the elements of `rest`.
fn permutations(rest: &[Step]) -> Vec<Vec<Step>> {
    if rest.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in rest.iter().enumerate() {
        let mut others = rest.to_vec();
        others.remove(at);
        for mut order in permutations(&others) {
            order.insert(0, *first);
            all.push(order);
        }
    }
    all
}

/// Takes up to `count` steps. Each time, takes the first step in `order` that is possible.
fn take_some(pair: &mut Pair, order: &[Step], count: usize) {
    for _ in 0..count {
        let Some(step) = order.iter().find(|step| pair.can(**step)) else {
            return;
        };
        pair.take(*step);
    }
}

#[test]
fn abort_is_the_reason_of_an_unconfirmed_close() {
    let steps = [
        Step::Wire(A),
        Step::Wire(B),
        Step::Cq(A),
        Step::Cq(B),
        Step::Cm(A),
        Step::Cm(B),
    ];
    let acks = [Step::Ack(A), Step::Ack(B)];
    let mut confirmed = [0, 0];
    for order in permutations(&steps) {
        for acks_first in [true, false] {
            let order: Vec<Step> = if acks_first {
                acks.into_iter().chain(order.clone()).collect()
            } else {
                order.iter().copied().chain(acks).collect()
            };
            for between in 0..12 {
                for closes_first in [true, false] {
                    let mut pair = pair();
                    assert!(pair.send(A) && pair.send(B));
                    if closes_first {
                        pair.close(A);
                        take_some(&mut pair, &order, between);
                        pair.abort(B, CODE);
                    } else {
                        pair.abort(B, CODE);
                        take_some(&mut pair, &order, between);
                        pair.close(A);
                    }
                    take_some(&mut pair, &order, usize::MAX);
                    pair.finish();
                    let delivered = pair.delivered(A);
                    let expected = if delivered {
                        CloseReason::LocallyClosed
                    } else {
                        CloseReason::PeerAborted(CODE)
                    };
                    assert_eq!(
                        pair.reason(A),
                        &expected,
                        "the reason must match `delivered`: {order:?}, {between} steps between \
                         the two calls, closes first: {closes_first}"
                    );
                    confirmed[usize::from(delivered)] += 1;
                }
            }
        }
    }
    assert!(
        confirmed.iter().all(|count| *count > 0),
        "some orders must confirm the close, and some must not: {confirmed:?}"
    );
}
