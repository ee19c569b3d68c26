//! The mutants: rules that can be broken on purpose, to show that the simulation would notice. The switches exist only in
//! tests.

#[cfg(test)]
use std::cell::Cell;

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident = $breaks:literal,)+) => {
        /// What breaks one rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(test), allow(dead_code))]
        pub(crate) enum Mutant {
            $($name,)+
        }

        /// All of them, and what each breaks.
        #[cfg(test)]
        pub(crate) const MUTANTS: &[(Mutant, &str)] = &[$((Mutant::$name, $breaks),)+];
    };
}

mutants! {
    NeverRetryDeferred = "what a server has refused for now is not sent again without an operation",
    WorkersStartNothing = "what a node refuses while it is connected anew is not sent again without an operation",
    OweNoShortening = "a shortening is not sent to a node that was away",
    LateShorteningBeginsAnew = "a shortening that comes late leaves the lock for as long as it could be held",
    LateShorteningReleases = "a shortening that comes late is a release",
    ForgetDeferred = "a release that a server could not carry out at the time is dropped",
    ReuseToken = "a token is used for two tries",
    UndoOnlyGranted = "an acquire is undone only where it was granted",
    NoPings = "no pings over a new connection",
    ReplyToAnyOperation = "a reply counts for the operation that has the slot now",
    DropReleaseWithConnection = "a release is dropped with its connection",
    ReleasesLast = "releases are written behind the operations",
    GoneIsHeld = "\"gone\" counts as held",
    VoteCountsTwice = "a vote counts twice",
    YesAfterUndo = "yes after the undo",
    NoWithoutQuorum = "no with fewer than a quorum of answers",
    DeadlineFromAnswer = "the deadline counts from the answer",
    TwoConnections = "two connections to one node are used",
    IgnoreFirstConnections = "first connections are not waited for",
    LeaveBeforeUndo = "an unresponsive node is handed over before its undo is written",
    CloseWithoutReset = "a dead connection is closed and not reset",
    ExtendAfterDeadline = "an extension counts after the old deadline",
    ReleaseOnlyGranted = "a lock is released only where it was granted",
    ResendAcquire = "an acquire is sent again over a new connection",
    DropUnloadedRelease = "a release whose script was not loaded is dropped",
    DropReleaseWithQueue = "a release is dropped because the queue's key was refused",
    ShortenNatively = "without scripts, an extension shortens",
    ShortenTooMuch = "a lock that is left for a time is shortened to less",
    DoNotShorten = "shortening a lock leaves it as it is",
    VoteAfterRestart = "a restarted node votes at once",
    IdentityIsRunId = "a server that was promoted is the same one",
    NoWitness = "a grant counts without the witness",
    AnyWitness = "a witness is not compared whole",
    SecondLookTrustsFirst = "a witness of the server at the first look counts at the second one",
    NoLooks = "a server that is connected is not looked at again",
    IgnoreEvictions = "a server that evicts keys is the same one",
    EvictionsAtConnection = "keys that are evicted while a connection lasts are not seen",
    EvictingIsCalm = "a server that has evicted keys before the first look has lost nothing",
    CalmReadFirst = "that a server is calm is read before the witness is there",
    IgnoreFlush = "a flush before the first look is not seen",
    AlwaysCalm = "a server that was promoted or flushed votes at once",
    GrantInMargin = "a lock is granted while the master before may go on",
    ExtendInMargin = "a lock is extended while the master before may go on",
    RepairAfterRelease = "a repair is written behind the release",
    RepairVotes = "a repair counts as a vote",
    NoReleaseOfRepairs = "a lock is not released where it was repaired",
    LargestFence = "the largest number of any quorum is a fencing token",
    FenceAfterDeadline = "a fencing token is given out after the deadline",
    RetryHasAllTime = "a second try has all the time of a first one",
    NoTooEarly = "\"no\" before it is known whether any node granted it",
    ForgetNotification = "a notification during a try is forgotten",
    EnqueueAfterDenial = "a process enters the queue after its denial",
    SwallowNotification = "a waiter that gives up does not pass its notification on",
    NotifyTheDead = "dead processes are notified, and not skipped",
    HandOffReusesToken = "a hand-off uses the token again",
    NoTryAfterHandOff = "a waiter whose hand-off failed does not contend",
    NoWakeOnSubscribe = "a subscription that is confirmed anew wakes no waiter",
    EndlessReservation = "a reservation never ends",
    SleepThroughReservation = "a reserved process may be gone, and the others sleep",
    JumpTheQueue = "a process that enqueues goes before the first in the queue",
    NotifyOwnProcess = "a release in a process without waiters notifies that process",
    NoReservation = "a lock is not reserved for the process that a release has notified",
    AnyFailureIsFinal = "a node that fails refuses for good",
    NeverConfirm = "a release is not confirmed when nothing follows",
    ConfirmOnce = "a release that is sent again is not confirmed",
    UnreadRefusal = "a waited release is not confirmed where keys beside locks were refused",
    RefusedIsLoaded = "a script counts as loaded although its call was refused for its keys",
    ConnectedBeforeConfirmed = "a node is connected before its releases are confirmed",
    AnySlotCounts = "a permit is a quorum of any slots",
    ExtensionCountsAnySlot = "an extension of a permit counts any slot",
    EndWithLast = "a set ends with the member that was added last",
    WriteBesideReaders = "a writer is granted beside readers",
    SomeNames = "of several names a node locks those that are free",
    ReleaseFirstName = "only the first of several names is released",
    KindsDoNotQueue = "permits, readers, writers and locks on several names enter no queue",
    QuietMembers = "a release of a permit or a read lock notifies no waiter",
    DoNotTellTheWriter = "a reader that a mark keeps out does not notify its writer",
    LeaveMark = "a writer that gives up leaves its mark",
    KeepMessage = "a waiter for several names keeps a message about another name than it is denied for",
    LeaveForOthers = "a waiter that leaves queues takes its process out of them, and others wait there",
    ClaimsInAnyOrder = "a caller that waits for a name keeps its claims on later ones",
    KeepClaims = "claims are not released where the lock has not taken them over",
    KeepReplica = "a connection to a server that has become a replica is kept",
    GiveUpUnasked = "a call fails as busy without having asked a node",
    KeepWhatCameTooLate = "a lock that was granted too late is not released",
    FailedHandOffIsHeld = "a lock whose hand-off failed counts as held in the process",
    AskSeldom = "a program is not asked after each sleep whether to go on",
    LeaveNoQueue = "a call that fails stays in the queue of its process",
    RenewLate = "a renewal is due after a whole ttl",
    RenewForEver = "a kept lock is renewed for longer than its bound",
    NoSecondRenewal = "a renewal that too few nodes answered is not tried again",
    GrantAfterDeadline = "a lock is granted after its deadline",
    SplitIsDenial = "a contender that has a vote gives up",
    TooSlowIsTrying = "a waiter whose lock came too late counts as trying still",
    SleepAfterHandOff = "after a hand-off the next waiter is not woken",
    NoWakeOnRelease = "a release wakes no waiter of its own process",
    LeaveInSilence = "a waiter that leaves does not wake the next one",
    NoPromotion = "when the first waiter leaves, no other one takes its place",
    HandOffBesideTry = "a lock is handed off to a waiter that makes a try itself",
    WaitForQuorum = "a notification from a minority is not followed",
    ExtensionFromAnswer = "an extension counts from its answer",
    SecondRoundCounts = "the largest number of a second round is a fencing token",
    DeferOnce = "a release that a server could not carry out twice is dropped",
    ForgottenIsLoaded = "a script counts as loaded although its server has forgotten it",
    ReleaseWhereConnected = "a lock is not released on nodes that are away",
    WaitForGone = "an acquire waits until its undo is written to a node whose connection has ended",
    DropWithReply = "a release is dropped where its reply ends the connection",
    ForgetLoss = "a lock that was lost is valid until its deadline",
    ExtensionShortens = "an extension by less shortens the validity",
    LoseWithoutToken = "a waiter is not returned to its queue where no token could be drawn for its hand-off",
    ConfirmOneTime = "the thread that confirms releases is started once, and not again after its end",
    // Found by the tests of `answers`: the simulation has no directory.
    UnaskedIsSilent = "a server that was not asked where the master is counts as one that does not answer",
    RefusalIsNoAnswer = "a server that may name another master does not count where others name one",
    MinorityNames = "a master is believed that few name",
    AnswerIsNew = "an answer counts from a later question than its own",
    // Found only where a server reads one write in a turn, as it does over TLS.
    PingCountsManyWrites = "over TLS, a ping stands for many writes",
}

#[cfg(test)]
thread_local! {
    static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Breaks a rule in this thread, or none.
#[cfg(test)]
pub(crate) fn set_mutant(mutant: Option<Mutant>) {
    BROKEN.set(mutant);
}

/// Whether this rule is broken.
#[cfg(test)]
pub(crate) fn mutant(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

#[cfg(not(test))]
pub(crate) const fn mutant(_: Mutant) -> bool {
    false
}
