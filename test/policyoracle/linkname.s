// A file like this lets evaluatePacket be declared without a body.
