//! The events of a world that are counted, to see that each happens; and the trace of a schedule.

/// Makes an enum `Count` of the names, and `Counts`, which has a number for each.
macro_rules! counts {
    ($($name:ident,)+) => {
        #[derive(Clone, Copy, Debug)]
        pub(in crate::proof::sim) enum Count {
            $($name,)+
        }

        #[derive(Clone, Copy)]
        pub(in crate::proof::sim) struct Counts([u64; Counts::ALL.len()]);

        impl Counts {
            const ALL: &'static [Count] = &[$(Count::$name,)+];

            /// The events that never happened.
            pub(in crate::proof::sim) fn never(&self) -> Vec<Count> {
                let all = Counts::ALL.iter().zip(self.0);
                all.filter(|(_, times)| *times == 0).map(|(event, _)| *event).collect()
            }

            pub(in crate::proof::sim) fn add(&mut self, other: &Counts) {
                for (sum, count) in self.0.iter_mut().zip(other.0) {
                    *sum += count;
                }
            }
        }

        impl Default for Counts {
            fn default() -> Counts {
                Counts([0; Counts::ALL.len()])
            }
        }

        impl std::ops::Index<Count> for Counts {
            type Output = u64;

            fn index(&self, count: Count) -> &u64 {
                &self.0[count as usize]
            }
        }

        impl std::ops::IndexMut<Count> for Counts {
            fn index_mut(&mut self, count: Count) -> &mut u64 {
                &mut self.0[count as usize]
            }
        }

        impl std::fmt::Debug for Counts {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_map().entries(Counts::ALL.iter().zip(self.0)).finish()
            }
        }
    };
}
pub(super) use counts;

macro_rules! trace {
    ($world:expr, $($what:tt)+) => {
        if $world.traced {
            println!("{:>9} {}", $world.t, format!($($what)+));
        }
    };
}
pub(super) use trace;
