//! Random pauses. The seed is an argument, so that a simulation can be replayed.

use std::time::Duration;

/// A pause is one of this number of equal steps.
const STEPS: u32 = 1024;

/// A xorshift generator, for pauses. (Tokens come from the operating system.)
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed | 1)
    }

    /// A time of at least `min`, and less than `max`.
    pub(crate) fn between(&mut self, (min, max): (Duration, Duration)) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let step = u32::try_from(self.0 % u64::from(STEPS)).unwrap_or(0);
        min + max.saturating_sub(min) / STEPS * step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_spread_over_the_whole_range_and_not_beyond() {
        let (min, max) = (Duration::from_millis(50), Duration::from_millis(250));
        let mut rng = Rng::new(17);
        let drawn: Vec<Duration> = (0..2000).map(|_| rng.between((min, max))).collect();
        assert!(drawn.iter().all(|pause| (min..=max).contains(pause)));
        for quarter in 0..4 {
            let from = min + (max - min) * quarter / 4;
            let within = from..from + (max - min) / 4;
            let share = drawn.iter().filter(|pause| within.contains(pause)).count();
            assert!((400..600).contains(&share), "{share} of 2000 in {within:?}");
        }
        assert_eq!(rng.between((max, max)), max);
        assert_eq!(rng.between((max, min)), max);
    }
}
