//! Races: mistakes that can be made on purpose where threads meet, to show that the schedules in `proof/schedules` would
//! find them. The switches exist only there.

#[cfg(schedules)]
use std::cell::Cell;

macro_rules! races {
    ($($name:ident = $text:literal,)+) => {
        /// A mistake where threads meet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(schedules), allow(dead_code, unreachable_pub))]
        pub enum Race {
            $($name,)+
        }

        /// Each race with what happens then.
        #[cfg(schedules)]
        pub const RACES: &[(Race, &str)] = &[$((Race::$name, $text),)+];
    };
}

races! {
    NoHandOver = "a leader that ends leaves the lead to a thread that sleeps",
    StaleAwake = "whether the next thread is awake is read before the lead is left",
    StaysAwake = "a thread whose hand-off failed counts as awake when it sleeps again",
    SleepWithoutLook = "a thread that was awake does not look once more before it sleeps",
    UnmarkAfterLook = "a thread looks for the lead, and is unmarked as awake after that",
    LeadForNothing = "a thread that was answered leads",
    TwoLeaders = "a thread leads while another one does",
    LeadUnnoticed = "a thread that is handed the lead is not woken",
    WakeBeforeAnswer = "a thread is woken before its answer is there",
    AnswerOfAnother = "an answer goes to another caller",
    WaitUnlocked = "a thread lets news pass before it waits for them",
    NewsUnheard = "what a worker has done wakes no thread that waits for it",
    HandOverTooLate = "a worker ends before it hands its connection over",
    PanicKeepsLead = "a leader that panics keeps the lead",
    PanicIsIgnored = "a leader that panics leaves its operations as they are",
}

#[cfg(schedules)]
thread_local! {
    static MADE: Cell<Option<Race>> = const { Cell::new(None) };
}

/// Makes this mistake in this thread, or none.
#[cfg(schedules)]
pub(crate) fn set_race(race: Option<Race>) {
    MADE.set(race);
}

/// Whether this mistake is made.
#[cfg(schedules)]
pub(crate) fn race(race: Race) -> bool {
    MADE.get() == Some(race)
}

#[cfg(not(schedules))]
pub(crate) const fn race(_: Race) -> bool {
    false
}
