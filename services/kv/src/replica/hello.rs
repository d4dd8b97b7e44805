//! Introduction of replicas: the first messages on a session.

use super::codec::{CodecError, Reader};
use super::membership::{decode_members, encode_members, encode_text};

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
    pub(crate) initial_members: Vec<(u64, String)>,
    /// The members that the replica knows.
    pub(crate) members: Vec<(u64, String)>,
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
        let mut out = VERSION.to_le_bytes().to_vec();
        for number in [self.cluster, self.replica, self.leader] {
            out.extend(number.to_le_bytes());
        }
        for list in [&self.initial_members, &self.members] {
            encode_members(list.iter().map(|(replica, address)| (*replica, address)), &mut out);
        }
        out
    }

    /// Decodes a hello; `None` if it has another version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, CodecError> {
        let mut input = Reader::new(bytes);
        if input.u16()? != VERSION {
            return Ok(None);
        }
        let hello = Self {
            cluster: input.u64()?,
            replica: input.u64()?,
            leader: input.u64()?,
            initial_members: decode_members(&mut input)?,
            members: decode_members(&mut input)?,
        };
        input.end()?;
        Ok(Some(hello))
    }
}

impl Join {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.cluster.to_le_bytes().to_vec();
        out.extend(self.replica.to_le_bytes());
        encode_text(&self.address, &mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut input = Reader::new(bytes);
        let join = Self { cluster: input.u64()?, replica: input.u64()?, address: input.text()? };
        input.end()?;
        Ok(join)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello__round_trips_and_no_part_of_it_decodes() {
        let members = vec![(1 << 48 | 5, "a:1".to_owned()), (2 << 48 | 6, "b:2".to_owned())];
        let hello =
            Hello { cluster: 1, replica: 2, leader: 3, initial_members: members.clone(), members };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Ok(Some(hello)));
        for len in 0..bytes.len() {
            assert_eq!(Hello::decode(&bytes[..len]), Err(CodecError::Short));
        }
        assert_eq!(Hello::decode(&[9, 9]), Ok(None));
    }

    #[test]
    fn join__round_trips_and_with_more_bytes_is_refused() {
        let join = Join { cluster: 1, replica: 2, address: "10.0.0.1:7000".to_owned() };
        let mut bytes = join.encode();
        assert_eq!(Join::decode(&bytes), Ok(join));
        bytes.push(0);
        assert_eq!(Join::decode(&bytes), Err(CodecError::Long));
    }
}
