//! The one that all connections send to.

use crate::{
    RECEIVES, Receives,
    account::{self, Account},
    control_receives::CONTROL_RECEIVES,
    credit::RecvCredit,
};

/// The window of a connection that shares receives: what it may have while others are idle.
const SHARED_WINDOW: u16 = 64;

/// The server's side of all connections.
#[derive(Debug)]
pub(super) struct Server {
    credits: Vec<RecvCredit>,
    /// Of the receives that are shared.
    account: Option<Account>,
    /// How many receives are posted that hold no message: of all, or of each connection.
    posted: Vec<u32>,
    /// The fewest that there were.
    pub(super) least_posted: u32,
}

impl Server {
    /// Opens so many connections. Returns it with the window of each and its first credit.
    pub(super) fn new(receives: Receives, connections: u32) -> (Self, u16, u16) {
        let (window, credit, account, posted) = match receives {
            Receives::Own => {
                let window = (RECEIVES - CONTROL_RECEIVES) as u16;
                (
                    window,
                    window,
                    None,
                    vec![u32::from(window); connections as usize],
                )
            }
            Receives::Shared => {
                let total = RECEIVES * connections;
                let account = Account::new(total);
                for _ in 0..connections {
                    assert!(
                        account.open(SHARED_WINDOW),
                        "half of them is for connections"
                    );
                }
                let credit = account::floor(SHARED_WINDOW);
                // Each connection's control frames have theirs.
                let posted = vec![total - CONTROL_RECEIVES * connections];
                (SHARED_WINDOW, credit, Some(account), posted)
            }
        };
        let credits = (0..connections).map(|_| RecvCredit::new(window, credit, 0));
        let this = Self {
            credits: credits.collect(),
            account,
            least_posted: posted[0],
            posted,
        };
        (this, window, credit)
    }

    /// A message arrives, and must find a receive: without one its sender would be told to try
    /// again, and all behind it with it.
    pub(super) fn arrive(&mut self, connection: usize) {
        let posted = self.posted_of(connection);
        *posted = posted.checked_sub(1).expect("no message without a receive");
        let left = *posted;
        self.least_posted = self.least_posted.min(left);
        let credit = &mut self.credits[connection];
        assert!(credit.allows(1), "no message without credit");
        credit.receive(1);
    }

    /// The application is done with a message. Returns what the peer is granted now, if that takes
    /// a frame.
    pub(super) fn release(&mut self, connection: usize) -> Option<u32> {
        *self.posted_of(connection) += 1;
        let credit = &mut self.credits[connection];
        credit.release(self.account.as_ref());
        credit.grant_due().then(|| credit.announce())
    }

    fn posted_of(&mut self, connection: usize) -> &mut u32 {
        let shared = self.account.is_some();
        &mut self.posted[if shared { 0 } else { connection }]
    }
}
