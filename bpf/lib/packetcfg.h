/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the settings of the packet programs: constants by which the verifier removes
 * dead branches. */
#pragma once

#include "packetconfig.h"

const volatile struct packet_config cfg;
