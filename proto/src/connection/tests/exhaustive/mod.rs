mod fingerprint;
mod judge;
mod mistake;
mod reduction;
mod search;
mod world;

use self::{
    mistake::Mistake,
    search::{Search, timed},
    world::{Deed, World},
};

/// What happens at most in the states that are searched.
#[derive(Clone, Copy, Debug)]
struct Scope {
    name: &'static str,
    window: u16,
    /// The slots of the send ring for data.
    slots: u32,
    /// The longest chunk in bytes in which a large message is read.
    chunk: u64,
    /// The bytes of large messages that may be in flight.
    memory: u64,
    shared: bool,
    /// Whether the search begins before the connection is established.
    establishing: bool,
    acknowledgements_get_lost: bool,
    /// How often each deed is done at most, by A and by B.
    deeds: &'static [(Deed, [u8; 2])],
}

const SMALL: Scope = Scope {
    name: "",
    window: 1,
    slots: 1,
    chunk: 1 << 20,
    memory: 4 << 20,
    shared: false,
    establishing: false,
    acknowledgements_get_lost: false,
    deeds: &[],
};



macro_rules! scopes {
    ($($name:literal $(($($field:ident: $value:expr),*))? => $($deed:ident $a:literal $b:literal),*;)*) => {
        &[$(Scope { name: $name, deeds: &[$((Deed::$deed, [$a, $b])),*], $($($field: $value,)*)? ..SMALL }),*]
    };
}

const SCOPES: &[Scope] = scopes! {
    "1+1, both close" => Send 1 1, Close 1 1;
    "2+1, both close" => Send 2 1, Close 1 1;
    "1+1, window 2" (window: 2, slots: 2) => Send 1 1, Close 1 1;
    "1 large, both close" => Large 1 0, Close 1 1;
    "1+1 large, A closes" (window: 2, slots: 2)  => Large 1 1, Close 1 0;
    "1 large, 1 small, A closes" (window: 2, slots: 2)  => Large 1 0, Send 1 0, Close 1 0;
    "finish" => Send 1 1, Finish 1 1, Close 1 0;
    "flush" => Send 1 1, Flush 1 0, Close 1 0;
    "batch" (window: 3) => Batch 1 1, Close 1 0;
    "hold" => Send 2 0, Hold 2 0, Close 1 0;
    "establishing" (establishing: true) => Send 1 1, Close 1 1;
    "shared" (shared: true, window: 3) => Send 3 0, Close 1 0;
    "lost acks" (acknowledgements_get_lost: true) => Send 1 0, Close 1 1;
    "markers" => Send 1 0, LoseMarkers 1 1, Close 1 0;
    "1, kill A" => Send 1 0, Kill 1 0, Close 1 1;
    "1, kill B" => Send 1 0, Kill 0 1, Close 1 1;
    "large, kill A" => Large 1 0, Kill 1 0, Close 1 0;
    "large, kill B" => Large 1 0, Kill 0 1, Close 1 0;
    "abort" => Send 1 1, Abort 1 1;
    "abort close" => Send 1 0, Abort 0 1, Close 1 0;
    "give up" => Send 1 1, GiveUp 1 0, Close 1 0;
    "refuse" => Large 1 0, Refuse 0 1, Kill 1 0;
    "remove" => Send 1 1, Remove 1 0, Close 1 0;
    "vanish" => Send 1 1, Vanish 1 0, Close 0 1;
    "wait" => Send 1 0, Wait 1 0, Close 1 1;
    "wait large" => Large 1 0, Wait 2 0, Close 1 0;
};

#[test]
fn try_scopes() {
    let only = std::env::var("ONLY").unwrap_or_default();
    for scope in SCOPES.iter().skip_while(|it| !it.name.starts_with(&only)) {
        let mut search = Search::new(World::new(scope));
        search.most_states = 600_000;
        let (found, seconds) = timed(search);
        println!(
            "{}: {} states, {} transitions, {} ends, depth {}, {seconds:.1} s, {} {}",
            scope.name, found.states, found.transitions, found.ends, found.depth, found.is_complete,
            found.violation.unwrap_or_default()
        );
    }
}

#[test]
fn mistakes() {
    const MISTAKES: &[Scope] = scopes! {
        "0" => Send 1 0, Close 1 0;
        "1" => Send 1 0, Close 1 1;
        "3" => Large 1 0;
        "4" => Send 2 0;
    };
    for mistake in Mistake::ALL {
        for scope in MISTAKES {
            let mut search = Search::new(World::new(scope)).with_mistake(mistake);
            search.most_states = 400_000;
            let (found, _) = timed(search);
            println!("{mistake:?} {}: {} {} {} ", scope.name, found.states, found.is_complete, found.violation.unwrap_or_default());
        }
    }
}
