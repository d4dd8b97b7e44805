//! Introduction of replicas: the first messages on a session.

use super::membership::{Members, put_address, put_members, read_address, read_members};
use crate::wire::{DecodeError, Reader, Write};

/// The version of the messages between replicas. Other versions are refused.
pub(crate) const VERSION: u16 = 1;

/// A replica's introduction, when it opens a session and as the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The replica's cluster; 0 for none yet.
    pub(crate) cluster: u64,
    pub(crate) replica: u64,
    /// The leader, 0 if unknown.
    pub(crate) leader: u64,
    /// The replicas that bootstrapped the cluster. A replica named here belongs to the cluster, even before learning of
    /// the bootstrap.
    pub(crate) initial_members: Members,
    /// The members that the replica knows.
    pub(crate) members: Members,
}

/// A replica's request to the leader to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    pub(crate) cluster: u64,
    pub(crate) replica: u64,
    pub(crate) address: String,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        [self.cluster, self.replica, self.leader].iter().for_each(|it| out.put_u64(*it));
        put_members(&self.initial_members, &mut out);
        put_members(&self.members, &mut out);
        out
    }

    /// Decodes a hello; `None` if it has another version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        let mut input = Reader::new(bytes);
        if input.u16("version")? != VERSION {
            return Ok(None);
        }
        let hello = Self {
            cluster: input.u64("cluster")?,
            replica: input.u64("replica")?,
            leader: input.u64("leader")?,
            initial_members: read_members(&mut input)?,
            members: read_members(&mut input)?,
        };
        input.end().map(|()| Some(hello))
    }
}

impl Join {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.cluster);
        out.put_u64(self.replica);
        put_address(&self.address, &mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let (cluster, replica) = (input.u64("cluster")?, input.u64("replica")?);
        let join = Self { cluster, replica, address: read_address(&mut input)? };
        input.end().map(|()| join)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello__round_trips_and_no_part_of_it_decodes() {
        let members =
            Members::from([(1 << 48 | 5, "a:1".to_owned()), (2 << 48 | 6, "b:2".to_owned())]);
        let hello =
            Hello { cluster: 1, replica: 2, leader: 3, initial_members: members.clone(), members };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Ok(Some(hello)));
        for len in 0..bytes.len() {
            assert!(matches!(Hello::decode(&bytes[..len]), Err(DecodeError::Truncated(_))));
        }
        assert_eq!(Hello::decode(&[9, 9]), Ok(None));
    }

    #[test]
    fn join__round_trips_and_with_more_bytes_is_refused() {
        let join = Join { cluster: 1, replica: 2, address: "10.0.0.1:7000".to_owned() };
        let mut bytes = join.encode();
        assert_eq!(Join::decode(&bytes), Ok(join));
        bytes.push(0);
        assert_eq!(Join::decode(&bytes), Err(DecodeError::Trailing(1)));
    }
}
