//! What clients do: they ask, decide, extend and release.

use super::{
    Client, EXTENDED, GONE, GRANTED, Lease, Node, OVER, Phase, Refill, SILENT, State, Steps,
    UNDER_WAY, Wrong, letter,
};

impl Lease {
    pub(super) fn client_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = state.clients[at];
        match client.phase {
            Phase::Idle => {
                let most = if at == 0 {
                    self.attempts_first
                } else {
                    self.attempts_others
                };
                if usize::from(client.attempt) < self.attempts.min(most) {
                    self.ask(state, at, steps);
                }
            }
            Phase::Acquiring => {
                self.acquire(state, at, steps);
                self.finish(state, at, "gives up", steps);
            }
            Phase::Holding => {
                if !self.keeps(at) {
                    self.finish(state, at, "releases", steps);
                }
                self.begin_to_extend(state, at, steps);
                if client.extending {
                    self.extend_or_not(state, at, steps);
                }
            }
        }
    }

    fn attempt(&self, state: &State, at: usize) -> usize {
        at * self.attempts + usize::from(state.clients[at].attempt)
    }

    /// It is the holder in a rolling restart.
    fn keeps(&self, at: usize) -> bool {
        self.rolling && at == 0
    }

    fn ask(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let attempt = self.attempt(state, at);
        let mut new = *state;
        for node in &mut new.nodes[..self.nodes] {
            let away = self.away && self.is_in_quarantine(node);
            node.set.put(attempt, if away { 0 } else { UNDER_WAY });
            if !self.is_in_quarantine(node) {
                node.votes.add(attempt);
            }
        }
        new.clients[at] = Client {
            phase: Phase::Acquiring,
            attempt: state.clients[at].attempt,
            ..Client::default()
        };
        self.add(steps, new, || {
            format!("{} asks for the lock: SET to all nodes", self.name(attempt))
        });
    }

    /// Quorum, and the validity is not over (rules R4, R9).
    fn acquire(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = state.clients[at];
        let attempt = self.attempt(state, at);
        let granted = |node: &&Node| node.set.get(attempt) == GRANTED && node.votes.has(attempt);
        let votes = state.nodes[..self.nodes].iter().filter(granted).count();
        let elapsed = if self.counts_from_decision {
            0
        } else {
            client.elapsed
        };
        let belief = (self.ttl_of(at) + self.client_slow).saturating_sub(elapsed + self.drift);
        if votes < self.quorum || belief == 0 {
            return;
        }
        let mut new = *state;
        for node in &mut new.nodes[..self.nodes] {
            if node.set.get(attempt) == GRANTED {
                if self.refill_seen_only {
                    node.granted.add(attempt);
                }
                if !self.releases_seen_only && !self.extends_seen_only {
                    node.set.put(attempt, OVER);
                }
            }
            node.votes.remove(attempt);
        }
        new.clients[at] = Client {
            phase: Phase::Holding,
            attempt: client.attempt,
            belief,
            ..Client::default()
        };
        self.tell_others(&mut new, at);
        self.add(steps, new, || {
            format!("{} HOLDS the lock for {belief} ticks", self.name(attempt))
        });
    }

    /// For the property: those that hold, or held a moment ago, have seen another one hold.
    fn tell_others(&self, state: &mut State, at: usize) {
        for (other, client) in state.clients[..self.clients].iter_mut().enumerate() {
            if other != at && client.phase == Phase::Holding {
                client.other_held = true;
            }
        }
    }

    /// The attempt is over, and its releases are sent (rule R6).
    fn finish(&self, state: &State, at: usize, does: &str, steps: &mut Steps<State>) {
        let attempt = self.attempt(state, at);
        let mut new = *state;
        for node in &mut new.nodes[..self.nodes] {
            let granted = node.set.get(attempt) == GRANTED;
            if granted {
                node.set.put(attempt, OVER);
            }
            if node.extension.get(attempt) >= EXTENDED {
                node.extension.put(attempt, SILENT);
            }
            if (!self.releases_seen_only || granted) && !node.denied.has(attempt) {
                node.release.add(attempt);
            }
            node.votes.remove(attempt);
            node.granted.remove(attempt);
            node.denied.remove(attempt);
            if !self.refill_after_release {
                node.to_refill.remove(attempt);
            }
        }
        new.clients[at] = Client {
            attempt: state.clients[at].attempt + 1,
            ..Client::default()
        };
        self.add(steps, new, || {
            format!("{} {does}: releases are sent", self.name(attempt))
        });
    }

    fn begin_to_extend(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = state.clients[at];
        let may = at == 0 || !self.only_first_extends;
        let left = self.keeps(at) || client.extensions < self.extensions;
        let valid = client.belief > 0 || !self.old_deadline;
        if !may || self.keeps(at) && client.done || client.extending || !left || !valid {
            return;
        }
        let attempt = self.attempt(state, at);
        let mut new = *state;
        let has_key = |node: &&Node| node.key == self.token(attempt);
        let keys = state.nodes[..self.nodes].iter().filter(has_key).count();
        let may_come = |node: &Node| {
            let messages = node.refill.0 | node.earlier.0 | node.to_refill.0;
            let under_way = [node.set, node.extension].map(|pairs| pairs.get(attempt) == UNDER_WAY);
            under_way.contains(&true) || messages >> attempt & 1 == 1
        };
        let coming = state.nodes[..self.nodes].iter().any(may_come);
        if self.no_revival && keys < self.quorum && !coming {
            new.clients[at].lost = true;
        }
        for node in &mut new.nodes[..self.nodes] {
            node.to_refill.remove(attempt);
            if self.overlapping && node.extension.get(attempt) == UNDER_WAY {
                node.earlier.add(attempt);
            }
            let quarantine = self.is_in_quarantine(node);
            let away = self.away && quarantine;
            node.extension
                .put(attempt, if away { SILENT } else { UNDER_WAY });
            node.extension_votes.remove(attempt);
            if !self.guards_extensions || !quarantine {
                node.extension_votes.add(attempt);
            }
        }
        let new_client = &mut new.clients[at];
        new_client.other_held_before = client.other_held;
        new_client.extending = true;
        new_client.confirmed = false;
        new_client.extension_elapsed = 0;
        if !self.keeps(at) {
            new_client.extensions += 1;
        }
        if self.lowers_first && self.extension_ttl < self.ttl && !self.never_shortens {
            let lower = (self.extension_ttl + self.client_slow).saturating_sub(self.drift);
            new_client.belief = client.belief.min(lower);
        }
        self.add(steps, new, || format!("{} extends", self.name(attempt)));
    }

    /// Rules R10, R13.
    fn extend_or_not(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = state.clients[at];
        let attempt = self.attempt(state, at);
        let nodes = &state.nodes[..self.nodes];
        let extended = |node: &&Node| {
            let seen = !self.extends_seen_only || node.set.get(attempt) == GRANTED;
            node.extension.get(attempt) == EXTENDED && node.extension_votes.has(attempt) && seen
        };
        let votes = nodes.iter().filter(extended).count();
        let ttl = self.extension_ttl_of(at) + self.client_slow;
        let belief = ttl.saturating_sub(client.extension_elapsed + self.drift);
        if votes >= self.quorum && belief > 0 && (client.belief > 0 || !self.old_deadline) {
            self.confirm(state, at, belief, steps);
        }
        // In a rolling restart all answers are waited for.
        let coming =
            |node: &Node| node.extension.get(attempt) == UNDER_WAY || node.refill.has(attempt);
        if self.keeps(at) && (votes >= self.quorum || nodes.iter().any(coming)) {
            return;
        }
        let mut new = *state;
        self.end_extension(&mut new, at);
        self.add(steps, new, || {
            let name = letter(at);
            format!("{name} stops waiting for its extension")
        });
    }

    fn confirm(&self, state: &State, at: usize, belief: u8, steps: &mut Steps<State>) {
        let before = state.clients[at];
        let attempt = self.attempt(state, at);
        let mut new = *state;
        if self.refill == Refill::AfterQuorum {
            for node in &mut new.nodes[..self.nodes] {
                self.refill_after_quorum(node, attempt, belief);
            }
        }
        self.end_extension(&mut new, at);
        let client = &mut new.clients[at];
        client.confirmed = true;
        client.belief = before.belief.max(belief);
        let over_other = if self.overlap_ignored {
            before.other_held_before
        } else {
            before.other_held
        };
        if over_other {
            new.wrong = Wrong::ExtendedOverOther;
        } else if before.lost {
            new.wrong = Wrong::Revived;
        }
        self.tell_others(&mut new, at);
        let belief = new.clients[at].belief;
        self.add(steps, new, || {
            format!("{} is EXTENDED: {belief} ticks", self.name(attempt))
        });
    }

    fn refill_after_quorum(&self, node: &mut Node, attempt: usize, belief: u8) {
        let wanted = node.extension.get(attempt) == GONE || self.refill_all;
        if !wanted || self.refill_seen_only && !node.granted.has(attempt) {
            return;
        }
        if !self.refill_with_verdict {
            node.to_refill.add(attempt);
        } else if !(self.away && self.is_in_quarantine(node)) {
            node.refill.add(attempt);
            node.refill_ttl = if self.refill_for_rest { belief } else { 0 };
        }
    }

    fn end_extension(&self, state: &mut State, at: usize) {
        let attempt = self.attempt(state, at);
        for node in &mut state.nodes[..self.nodes] {
            if node.extension.get(attempt) >= EXTENDED {
                node.extension.put(attempt, SILENT);
            }
        }
        let client = &mut state.clients[at];
        client.done = self.keeps(at);
        client.extending = false;
        client.extension_elapsed = 0;
    }
}
