@0xf8bd2e9d5b3c6a41;

interface Bench {
  # The request comes back.
  echo @0 (data :Data) -> (data :Data);
  # A proof of the request comes back.
  bulk @1 (data :Data) -> (data :Data);
}
