//! The typed service of the row `zerocopy`: the same bytes as `client`.

use petrel::service::Zerocopy;
use petrel::{Context, Error};

use super::workload::SMALL_BYTES;

type Message = [u8; SMALL_BYTES];

#[petrel::service(codec = Zerocopy)]
pub(crate) trait Samples {
    #[dispatch]
    #[id(2)]
    fn echo(&self, cx: &mut Context<'_>, message: &Message) -> Result<Message, Error>;
}

pub(crate) struct Echo;

impl Samples for Echo {
    #[inline]
    fn echo(&self, _: &mut Context<'_>, message: &Message) -> Result<Message, Error> {
        Ok(*message)
    }
}
