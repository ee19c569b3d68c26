//! The meaning of a Redis Cluster's answers about a master (rule R43).

use std::time::Instant;

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::text;
use crate::net::place::cluster_maps::Maps;
use crate::net::place::cluster_servers::ClusterServers;
use crate::net::place::server_question::Opinions;
use crate::protocol::node::cluster_votes::About;
use crate::protocol::node::found_master::LastWord;
use crate::protocol::node::master_answers::Belief;
use crate::values::clock;
use crate::values::sync::atomic::{AtomicU16, Ordering};

impl ClusterServers {
    /// Whether the master that is believed counts without being asked about once more (rule R43).
    pub(crate) fn is_confirmed(&self, said: &Maps) -> bool {
        let named = said.opinions.believed().filter(|named| named.by_most);
        named.is_some_and(|named| {
            let about = About {
                address: &text::address(&named.addr),
                lately: false,
            };
            said.confirm(&said.opinions, about, self.map().as_deref())
        })
    }

    /// Whether answers about a master are enough. (Another one has to be named by most of those that were asked.)
    pub(super) fn is_decided(&self, said: &Maps, about: About<'_>) -> bool {
        let Belief::Named { by_most, .. } = said.opinions.belief() else {
            return false;
        };
        let word = self.word(said, about, clock::instant());
        word.is_some_and(|(word, _)| word.answer.is_ok() || by_most)
    }

    /// Whether the server still is the master of this slot, or, by most of the answers, of another one, which then replaces
    /// it (rule R43). `None` if the answers do not decide it.
    pub(crate) fn confirm(
        &self,
        said: &Maps,
        slot: &AtomicU16,
        about: About<'_>,
        asked: Instant,
    ) -> Option<LastWord> {
        let (word, stays) = self.word(said, about, asked)?;
        if let Some(other) = stays {
            slot.store(other, Ordering::Relaxed);
        }
        Some(word)
    }

    /// The meaning of the answers, and the server's other slot, if they are about that.
    fn word(
        &self,
        said: &Maps,
        about: About<'_>,
        asked: Instant,
    ) -> Option<(LastWord, Option<u16>)> {
        let address = about.address;
        let is_there = |addr: &ConnectionAddr| match text::address(addr) {
            named if named == address => Ok(()),
            named => Err(Cause::Moved(named)),
        };
        let known = self.map();
        let confirms = |opinions: &Opinions| said.confirm(opinions, about, known.as_deref());
        let word = LastWord::of(&said.opinions.belief(), asked, is_there)?;
        if word.answer.is_ok() {
            return confirms(&said.opinions).then_some((word, None));
        }
        // The server may own other slots.
        let mut is_decided = true;
        for other in said.slots_of(address) {
            let opinions = said.about(|map| self.named(map, other, asked, false));
            match opinions.belief() {
                Belief::Named { master, at, .. } if text::address(master) == address => {
                    let (answer, at) = (Ok(()), at.min(word.at));
                    let word = LastWord { answer, at };
                    return confirms(&opinions).then_some((word, Some(other)));
                }
                Belief::Named { .. } => {}
                Belief::Silence { .. } | Belief::Unknown => is_decided = false,
            }
        }
        is_decided.then_some((word, None))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::net::place::cluster_servers::tests::{cluster, map};
    use crate::protocol::commands::slots::SlotMap;
    use crate::protocol::node::directory_questions::Heard;

    const ASK: Duration = Duration::from_secs(1);

    /// Confirms the server `a` by its slot 10. Returns the slot by which it is asked for then, and whether it is there.
    fn confirmed(maps: [Arc<SlotMap>; 3]) -> (u16, Option<bool>) {
        let cluster = cluster("redis+cluster://a:1,b:1,c:1", None);
        let now = clock::instant();
        let maps = maps.map(Ok);
        let heard: Vec<_> = maps.iter().map(|map| Heard::Answer(map, now)).collect();
        let slot = AtomicU16::new(10);
        let read = |map: &Arc<SlotMap>, asked| cluster.named(map, 10, asked, false);
        let opinions = Opinions::of((&cluster.seeds, 0), (now, ASK), &heard, read);
        let about = About {
            address: "a:1",
            lately: true,
        };
        let word = cluster.confirm(&Maps::of(opinions, &heard), &slot, about, now);
        (
            slot.load(Ordering::Relaxed),
            word.map(|word| word.answer.is_ok()),
        )
    }

    /// One that has learnt of a failover late may be the first to answer.
    #[test]
    fn a_server_that_lost_a_slot_stays_by_another_one_that_most_give_it() {
        for (maps, expected) in [
            ([map(20), map(20), map(0)], (10, Some(true))),
            ([map(5), map(5), map(5)], (0, Some(true))),
            ([map(5), map(5), map(0)], (0, Some(true))),
            // One alone gives it other slots: it was replaced.
            ([map(5), map(0), map(0)], (10, Some(false))),
            ([map(0), map(0), map(0)], (10, Some(false))),
        ] {
            assert_eq!(confirmed(maps.clone()), expected, "{maps:?}");
        }
    }
}
