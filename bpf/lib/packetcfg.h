/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what the agent decides for the programs of packets: constants that the verifier folds dead
 * branches with. */
#pragma once

#include "packetconfig.h"

const volatile struct packet_config cfg;
