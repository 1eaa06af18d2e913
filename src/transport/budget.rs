//! The memory budget that connections share for the large messages of their peers. All engines that
//! [`Engine::new`](crate::Engine::new) starts share one budget. Any other engine has its own
//! budget.
//!
//! A connection claims the bytes of a chunk immediately before it transfers the chunk. So an
//! announced message occupies almost no memory until its first chunk is transferred. For a message
//! in fragments, a chunk is a fragment, or the rest of a message of up to 1 MiB. If a limit is
//! reached, the claim waits. Waiting claims are granted to the peer hosts in rotation, and no host
//! gets more than three quarters of a limit. Partially received messages could block each other at
//! the limit. To prevent this, the claims for later chunks of such messages may exceed the limit:
//! see [`Gauge`]. Short messages have a reserve.
//!
//! The lock of the budget is the innermost lock: no other lock is taken while it is held. The
//! thread that releases memory may hold the locks of another connection. Therefore a connection
//! whose claim is granted gets a notice through the mailbox of its engine.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, Weak},
};

use super::limits::EngineLimits;
use crate::{
    os::{Guard, PerProcess, lock},
    poll::{Mailbox, Notice, NoticeKind},
    proto::{Gauge, Host, Part, SHORTEST_CHUNK},
};

/// The memory limits of one or more engines, and the connections that use the memory.
pub(crate) struct Budget {
    limits: EngineLimits,
    accounts: Mutex<Accounts>,
}

struct Accounts {
    /// The bytes that are pinned for reads in progress.
    pinned: Gauge,
    /// The bytes of messages that are being transferred, or have arrived and are not yet released.
    held: Gauge,
    /// The bytes of short messages that did not fit into `held`.
    reserve: Gauge,
    /// The number of bytes that stay pinned between reads.
    kept: u64,
    /// The ids of clients that wait because the operating system had no memory for them, although
    /// the budget had granted their claims.
    waiting_for_system: VecDeque<u64>,
    clients: HashMap<u64, (Arc<Mailbox<Notice>>, u64)>,
    next: u64,
}

/// The budget that all engines from [`Engine::new`](crate::Engine::new) share. The reference is
/// weak. If all these engines have ended, the next such engine computes the default limits again.
static SHARED: PerProcess<Mutex<Weak<Budget>>> = PerProcess::new(Mutex::default);

/// The category of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeKind {
    Pinned,
    Held,
    Reserve,
    Kept,
}

impl Budget {
    pub(crate) fn new(limits: EngineLimits) -> Arc<Self> {
        let accounts = Accounts {
            pinned: Gauge::new(limits.pinned_for_reads()),
            held: Gauge::new(limits.held - limits.held_by_short()),
            reserve: Gauge::new(limits.held_by_short()),
            kept: 0,
            waiting_for_system: VecDeque::new(),
            clients: HashMap::new(),
            next: 0,
        };
        Arc::new(Self {
            limits,
            accounts: Mutex::new(accounts),
        })
    }

    /// Returns the budget that all engines from [`Engine::new`](crate::Engine::new) share.
    pub(crate) fn shared() -> Arc<Self> {
        let mut shared = lock(SHARED.get());
        shared.upgrade().unwrap_or_else(|| {
            let budget = Self::new(EngineLimits::default());
            *shared = Arc::downgrade(&budget);
            budget
        })
    }

    pub(crate) fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// Returns the number of bytes that are pinned for reads or stay pinned between reads, and the
    /// number of bytes of held messages.
    pub(crate) fn in_use(&self) -> (u64, u64) {
        let accounts = lock(&self.accounts);
        (
            accounts.pinned.used() + accounts.kept,
            accounts.held.used() + accounts.reserve.used(),
        )
    }

    /// Registers a connection whose peer is on `host`. When a waiting claim of the connection is
    /// granted, the connection's engine gets a [`NoticeKind::RetryMemory`] with the connection's
    /// key.
    pub(crate) fn client(
        self: &Arc<Self>,
        mailbox: &Arc<Mailbox<Notice>>,
        key: u64,
        host: Host,
    ) -> BudgetClient {
        let mut accounts = lock(&self.accounts);
        let id = accounts.next;
        accounts.next += 1;
        accounts.clients.insert(id, (Arc::clone(mailbox), key));
        BudgetClient {
            budget: Arc::clone(self),
            id,
            host,
        }
    }

    /// Releases `bytes`. `used` states whether the bytes were allocated. If so, the operating
    /// system may now have memory for another connection.
    fn release(&self, kind: ChargeKind, host: Host, bytes: u64, used: bool) {
        let mut accounts = lock(&self.accounts);
        match kind {
            ChargeKind::Pinned => accounts.pinned.release(host, bytes),
            ChargeKind::Held => accounts.held.release(host, bytes),
            ChargeKind::Reserve => accounts.reserve.release(host, bytes),
            ChargeKind::Kept => accounts.kept -= bytes,
        }
        // The operating system may give the freed memory to a waiting connection. Only one
        // connection is notified: if the memory does not suffice for that connection, it probably
        // does not suffice for the others either.
        let waiting_for_system = used
            .then(|| accounts.waiting_for_system.pop_front())
            .flatten();
        Self::notify(accounts, waiting_for_system);
    }

    /// Notifies the clients whose claims were granted, and the client `waiting_for_system`, if any.
    fn notify(mut accounts: Guard<'_, Accounts>, waiting_for_system: Option<u64>) {
        let mut served = accounts.pinned.served();
        served.append(&mut accounts.held.served());
        served.append(&mut accounts.reserve.served());
        served.extend(waiting_for_system);
        if served.is_empty() {
            return;
        }
        let whom: Vec<_> = served
            .iter()
            .filter_map(|id| accounts.clients.get(id).cloned())
            .collect();
        drop(accounts);
        for (mailbox, key) in whom {
            // The send fails if the client's engine has ended. This failure is ignored, because the
            // client needs no more memory and is removed from the budget when it is dropped.
            mailbox.send(Notice {
                key,
                kind: NoticeKind::RetryMemory,
            });
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A connection that uses the budget. For each kind of charge, at most one claim of the connection
/// waits at a time.
#[derive(Debug)]
pub(crate) struct BudgetClient {
    budget: Arc<Budget>,
    id: u64,
    /// The peer's host.
    host: Host,
}

impl BudgetClient {
    /// Claims memory for the next `bytes` bytes of a message. If the claim is granted, adds the
    /// bytes to the message's charge, and returns `true`. Returns `false` if the claim must wait.
    /// In this case, the connection gets a notice when the claim is granted, and then repeats the
    /// call.
    ///
    /// A message of up to 64 KiB does not wait for longer messages.
    pub(crate) fn hold(&self, charge: &mut Option<Charge>, bytes: u64, part: Part) -> bool {
        let (id, host) = (self.id, self.host);
        let mut accounts = lock(&self.budget.accounts);
        let Accounts { held, reserve, .. } = &mut *accounts;
        let (kind, has) = if part != Part::Whole || bytes > SHORTEST_CHUNK {
            (ChargeKind::Held, held.claim(id, host, bytes, part))
        } else if !reserve.knows(id, host) && held.try_claim(host, bytes, u64::MAX) {
            (ChargeKind::Held, true)
        } else {
            (ChargeKind::Reserve, reserve.claim(id, host, bytes, part))
        };
        Budget::notify(accounts, None);
        match charge {
            Some(charge) if has => charge.bytes += bytes,
            None if has => *charge = Some(self.charge(kind, bytes)),
            Some(_) | None => {}
        }
        has
    }

    /// Claims memory for a whole message of `bytes` bytes, without waiting. The claim is granted
    /// only if at most half of the limit for held messages is in use afterwards. So messages of
    /// which only the first bytes have arrived leave memory for others. Returns `None` if the claim
    /// is not granted, or if another claim of the connection waits or was granted and not used yet.
    pub(crate) fn try_hold(&self, bytes: u64) -> Option<Charge> {
        let (id, host) = (self.id, self.host);
        let mut accounts = lock(&self.budget.accounts);
        let Accounts { held, reserve, .. } = &mut *accounts;
        let waits = held.knows(id, host) || reserve.knows(id, host);
        let has = !waits && held.try_claim(host, bytes, self.budget.limits.held / 2);
        drop(accounts);
        has.then(|| self.charge(ChargeKind::Held, bytes))
    }

    /// Claims `bytes` bytes of pinned memory for a read, or uses an earlier claim that was granted.
    /// Returns `None` if the claim must wait. In this case, the connection gets a notice when the
    /// claim is granted.
    pub(crate) fn pin(&self, bytes: u64) -> Option<Charge> {
        let mut accounts = lock(&self.budget.accounts);
        let (id, host) = (self.id, self.host);
        let has = accounts.pinned.claim(id, host, bytes, Part::Whole);
        Budget::notify(accounts, None);
        has.then(|| self.charge(ChargeKind::Pinned, bytes))
    }

    /// Claims `bytes` for a copy of unread stream bytes, without waiting. The claim is granted only
    /// if at most half of the limit for held messages is in use afterwards, so that copies do not
    /// use up the memory for messages.
    pub(crate) fn copy(&self, bytes: u64) -> Option<Charge> {
        let most = self.budget.limits.held / 2;
        let mut accounts = lock(&self.budget.accounts);
        let has = accounts.held.try_claim(self.host, bytes, most);
        drop(accounts);
        has.then(|| self.charge(ChargeKind::Held, bytes))
    }

    /// Returns true if a claim for message memory is waiting, and might be granted as soon as the
    /// peer's host releases memory. The claim may be that of another connection.
    pub(crate) fn is_contended(&self) -> bool {
        lock(&self.budget.accounts).held.is_contended_at(self.host)
    }

    /// Claims `bytes` that stay pinned for later reads, without waiting. Returns `None` if the
    /// bytes that stay pinned would exceed their limit.
    pub(crate) fn keep(&self, bytes: u64) -> Option<Charge> {
        let limit = self.budget.limits.pinned_for_keeping();
        let mut accounts = lock(&self.budget.accounts);
        let sum = accounts
            .kept
            .checked_add(bytes)
            .filter(|sum| *sum <= limit)?;
        accounts.kept = sum;
        drop(accounts);
        Some(self.charge(ChargeKind::Kept, bytes))
    }

    /// Makes the budget notify this client when a client releases memory. Called after the
    /// operating system had no memory for this client.
    pub(crate) fn await_memory(&self) {
        let mut accounts = lock(&self.budget.accounts);
        if !accounts.waiting_for_system.contains(&self.id) {
            accounts.waiting_for_system.push_back(self.id);
        }
    }

    /// Cancels all claims of the connection that wait, or that were granted and not used yet.
    pub(crate) fn leave(&self) {
        let mut accounts = lock(&self.budget.accounts);
        accounts.waiting_for_system.retain(|id| *id != self.id);
        let Accounts {
            pinned,
            held,
            reserve,
            ..
        } = &mut *accounts;
        for gauge in [pinned, held, reserve] {
            gauge.forget(self.id, self.host);
        }
        Budget::notify(accounts, None);
    }

    fn charge(&self, kind: ChargeKind, bytes: u64) -> Charge {
        Charge {
            budget: Arc::clone(&self.budget),
            kind,
            host: self.host,
            bytes,
            used: true,
        }
    }
}

impl Drop for BudgetClient {
    fn drop(&mut self) {
        self.leave();
        lock(&self.budget.accounts).clients.remove(&self.id);
    }
}

/// Bytes that are charged to the budget. Dropping the charge releases the bytes.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    kind: ChargeKind,
    host: Host,
    bytes: u64,
    /// Whether the operating system has allocated the memory.
    used: bool,
}

impl Charge {
    /// Releases the charge, for which the operating system had no memory. The release frees no
    /// memory of the operating system. Therefore it notifies no connection that waits for such
    /// memory.
    pub(crate) fn cancel(mut self) {
        self.used = false;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget
            .release(self.kind, self.host, self.bytes, self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notified(mailbox: &Mailbox<Notice>) -> Option<u64> {
        let notice = mailbox.take()?;
        assert_eq!(notice.kind, NoticeKind::RetryMemory);
        Some(notice.key)
    }

    fn host(number: u8) -> Host {
        Host::of([10, 8, 0, number].into())
    }

    /// Returns a budget of 800,000 bytes of messages.
    fn of_800_kb() -> Arc<Budget> {
        Budget::new(EngineLimits {
            pinned: 200,
            held: 800_000,
        })
    }

    fn hold(client: &BudgetClient, bytes: u64) -> Option<Charge> {
        let mut charge = None;
        client.hold(&mut charge, bytes, Part::Whole);
        charge
    }

    #[test]
    fn waiting_clients_are_notified_unless_they_left() {
        let budget = of_800_kb();
        let mailbox = Mailbox::new().unwrap();
        let clients = [16, 17, 18, 19].map(|key| budget.client(&mailbox, key, host(key as u8)));
        let [one, two, three, four] = &clients;
        let held = hold(one, 400_000).unwrap();
        for client in [two, three, four] {
            assert!(hold(client, 350_000).is_none());
        }
        assert!(one.is_contended());
        two.leave();
        drop(held);
        assert_eq!(notified(&mailbox), Some(18));
        assert_eq!(notified(&mailbox), Some(19));
        assert_eq!(
            budget.in_use(),
            (0, 700_000),
            "granted claims must count as used before the clients fetch them"
        );
        let held = hold(three, 350_000).unwrap();
        drop(clients);
        assert_eq!(
            budget.in_use(),
            (0, 350_000),
            "the charge of a message must outlive its client"
        );
        drop(held);
        assert_eq!(budget.in_use(), (0, 0));
        assert_eq!(notified(&mailbox), None);
    }

    #[test]
    fn a_short_message_has_a_reserve() {
        let budget = of_800_kb();
        let mailbox = Mailbox::new().unwrap();
        let [one, two, three] = [16, 17, 18].map(|key| budget.client(&mailbox, key, host(1)));
        let mut long = None;
        assert!(one.hold(&mut long, 510_000, Part::First));
        assert!(!two.hold(&mut None, 70_000, Part::Whole) && one.is_contended());
        two.leave();
        let short = hold(&two, 60_000).unwrap();
        assert!(hold(&three, 20_000).is_none());
        drop(short);
        assert_eq!(notified(&mailbox), Some(18));
        assert!(hold(&three, 20_000).is_some());
    }

    #[test]
    fn a_whole_message_is_not_claimed_beside_a_waiting_claim() {
        let budget = of_800_kb();
        let mailbox = Mailbox::new().unwrap();
        let [one, two, three] = [16, 17, 18].map(|key| budget.client(&mailbox, key, host(1)));
        let mut long = None;
        assert!(one.hold(&mut long, 510_000, Part::First));
        let short = hold(&two, 60_000).unwrap();
        assert!(hold(&three, 60_000).is_none());
        drop(long);
        assert!(three.try_hold(60_000).is_none());
        drop(short);
        assert!(three.try_hold(60_000).is_none(), "its claim was granted");
        let held = hold(&three, 60_000).unwrap();
        let more = three.try_hold(380_000).unwrap();
        assert!(
            two.try_hold(60_000).is_none(),
            "half of the limit is in use"
        );
        drop((held, more));
        assert_eq!(budget.in_use(), (0, 0));
    }

    #[test]
    fn reserve_leaves_memory_for_reads() {
        let budget = Budget::new(EngineLimits {
            pinned: 200,
            held: 100,
        });
        let mailbox = Mailbox::new().unwrap();
        let [one, two] = [16, 17].map(|key| budget.client(&mailbox, key, host(key as u8)));
        let kept = one.keep(80).unwrap();
        assert!(
            two.keep(30).is_none(),
            "the bytes that stay pinned must not exceed half of the limit"
        );
        let pinned = two.pin(100).unwrap();
        assert!(one.pin(10).is_none());
        assert_eq!(budget.in_use(), (180, 0));
        drop(pinned);
        assert_eq!(notified(&mailbox), Some(16));
        drop(one);
        assert_eq!(
            budget.in_use(),
            (80, 0),
            "the charge of kept bytes must outlive its client"
        );
        two.await_memory();
        two.pin(100).unwrap().cancel();
        assert_eq!(
            notified(&mailbox),
            None,
            "a cancelled charge must not notify clients that wait for the operating system"
        );
        drop(kept);
        assert_eq!(
            notified(&mailbox),
            Some(17),
            "freed memory must notify a client that waits for the operating system"
        );
        assert_eq!(notified(&mailbox), None);
    }

    #[test]
    fn engines_with_the_default_share_one_budget() {
        let one = Budget::shared();
        assert!(Arc::ptr_eq(&one, &Budget::shared()));
    }
}
