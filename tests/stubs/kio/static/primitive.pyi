# Primitive types of the protocol of Kafka, as plain Python types.

import datetime as dt

i8 = int
i16 = int
i32 = int
i64 = int
u8 = int
u16 = int
u32 = int
u64 = int
uvarint = int
uvarlong = int
svarint = int
svarlong = int
f64 = float
Records = bytes
PhantomStr = str
TZAware = dt.datetime
i32Timedelta = dt.timedelta  # noqa: N816
i64Timedelta = dt.timedelta  # noqa: N816
