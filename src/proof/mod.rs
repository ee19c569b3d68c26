//! Tests of the protocol as a whole: the simulation, the model's schedules, the differential test.

#[cfg(test)]
pub(crate) mod differential;
#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
pub(crate) mod oracle;
#[cfg(test)]
pub(crate) mod sim;
