use std::time::Duration;

use rdmsg::{Completion, Error, crossbeam_channel::select};

use crate::stage::{PATIENCE, pair};

#[test]
fn completions_come_by_each_way_of_taking_them() {
    let (near, far) = pair();
    assert!(far.try_next_completion().unwrap().is_none());
    let waited = far.next_completion_timeout(Duration::from_millis(20));
    assert!(matches!(waited, Err(Error::TimedOut)));
    near.send(b"one").unwrap();
    assert!(matches!(far.next_completion().unwrap(), Completion::Received(m) if *m == *b"one"));
    near.send(b"two").unwrap();
    select! {
        recv(far.completions()) -> completion => {
            assert!(matches!(completion.unwrap(), Completion::Received(m) if *m == *b"two"));
        }
        default(PATIENCE) => panic!("nothing came"),
    }
    near.close().unwrap();
    assert!(matches!(
        far.next_completion().unwrap(),
        Completion::Disconnected(_)
    ));
    assert!(matches!(far.next_completion(), Err(Error::Disconnected(_))));
}
